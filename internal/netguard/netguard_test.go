package netguard

import (
	"net/netip"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ addr, why string }{ // why "": the address is public
		{"8.8.8.8", ""}, {"1.1.1.1", ""}, {"9.255.255.255", ""}, {"11.0.0.0", ""}, {"223.255.255.255", ""},
		{"100.63.255.255", ""}, {"100.128.0.0", ""}, {"172.15.255.255", ""}, {"172.32.0.0", ""},
		{"192.167.255.255", ""}, {"192.169.0.0", ""}, {"198.17.255.255", ""}, {"198.20.0.0", ""},
		{"2606:4700::1111", ""}, {"2a00:1450:4001::8a", ""}, {"2001:4860:4860::8888", ""}, {"2001:200::1", ""},
		{"::ffff:8.8.8.8", ""}, {"64:ff9b::8.8.8.8", ""},

		{"0.0.0.0", "unspecified"}, {"0.1.2.3", "unspecified"}, {"::", "unspecified"},
		{"127.0.0.1", "loopback"}, {"127.255.255.254", "loopback"}, {"::1", "loopback"},
		{"10.0.0.0", "private"}, {"10.255.255.255", "private"}, {"172.16.0.1", "private"}, {"172.31.255.255", "private"},
		{"192.168.0.1", "private"}, {"192.168.255.255", "private"},
		{"100.64.0.0", "carrier"}, {"100.127.255.255", "carrier"},
		{"169.254.169.254", "link-local"}, {"fe80::1", "link-local"}, {"febf::1", "link-local"}, {"fe80::1%eth0", "link-local"},
		{"168.63.129.16", "Azure"}, {"::ffff:168.63.129.16", "Azure"}, {"168.63.129.15", ""}, {"168.63.129.17", ""},
		{"100.100.100.200", "carrier"}, {"fd20:ce::254", "unique local"}, {"192.0.0.192", "reserved"}, // of other clouds
		{"192.0.0.8", "reserved"}, {"192.0.2.1", "documentation"}, {"198.51.100.1", "documentation"}, {"203.0.113.1", "documentation"},
		{"192.88.99.1", "6to4"}, {"198.18.0.1", "benchmarks"}, {"198.19.255.255", "benchmarks"},
		{"224.0.0.1", "multicast"}, {"239.255.255.255", "multicast"}, {"240.0.0.1", "reserved"}, {"255.255.255.255", "reserved"},
		{"fc00::1", "unique local"}, {"fdff::1", "unique local"}, {"fd00:ec2::254", "unique local"}, {"fec0::1", "site-local"},
		{"ff02::1", "multicast"}, {"2001:db8::1", "documentation"}, {"3fff::1", "documentation"}, {"3fff:fff::1", "documentation"},
		{"2001:2::1", "protocol"}, {"2001::1", "Teredo"}, {"2001:0:7f00:1::1", "Teredo"}, {"2001:10::1", "protocol"},
		{"2002:7f00:1::", "6to4"}, {"2002:a00:1::1", "6to4"}, {"2002:808:808::1", "6to4"},
		{"::ffff:127.0.0.1", "loopback"}, {"::ffff:10.0.0.1", "private"}, {"::ffff:169.254.169.254", "link-local"},
		{"::ffff:0.0.0.0", "unspecified"}, {"::ffff:100.64.0.1", "carrier"}, {"::ffff:224.0.0.1", "multicast"},
		{"64:ff9b::127.0.0.1", "loopback"}, {"64:ff9b::10.1.2.3", "private"}, {"64:ff9b::a9fe:a9fe", "link-local"},
		{"64:ff9b:1::8.8.8.8", "reserved"}, {"::127.0.0.1", "reserved"}, {"::8.8.8.8", "reserved"},
		{"::ffff:0:127.0.0.1", "reserved"}, {"100::1", "reserved"}, {"5f00::1", "reserved"}, {"4000::1", "reserved"},
	} {
		addr := netip.MustParseAddr(test.addr)
		for _, err := range []error{
			Guard{}.Check(addr),
			Guard{}.Control(t.Context(), "tcp", netip.AddrPortFrom(addr, 443).String(), nil),
		} {
			switch {
			case test.why == "" && err != nil:
				t.Errorf("%s is refused: %v", addr, err)
			case test.why != "" && err == nil:
				t.Errorf("%s isn't refused", addr)
			case err != nil && (!strings.Contains(err.Error(), test.why) || !strings.Contains(err.Error(), addr.String())):
				t.Errorf("%s: %v, want it to name the address and %q", addr, err, test.why)
			}
		}
	}
	if (Guard{}).Check(netip.Addr{}) == nil {
		t.Error("no address is allowed")
	}
	for _, bad := range []struct{ network, address string }{{"tcp", "example.com:443"}, {"tcp", ""}, {"udp4", "8.8.8.8:53"}, {"unix", "/x"}} {
		if (Guard{}).Control(t.Context(), bad.network, bad.address, nil) == nil {
			t.Errorf("%s %q is allowed", bad.network, bad.address)
		}
	}
}

// TestHint: an error about a refused address ends with the guard's hint.
func TestHint(t *testing.T) {
	t.Parallel()
	err := Guard{Hint: "set allow_private"}.Check(netip.MustParseAddr("10.0.0.1"))
	if err == nil || err.Error() != "the address 10.0.0.1 is private, not public; set allow_private" {
		t.Errorf("the error is %v", err)
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]Kind{
		"8.8.8.8": Public, "2606:4700::1111": Public, "64:ff9b::8.8.8.8": Public,
		"10.1.2.3": Private, "192.168.0.1": Private, "172.16.0.1": Private, "100.64.0.1": Private, "fd00::1": Private, "::ffff:10.0.0.1": Private,
		"127.0.0.1": Loopback, "127.8.8.8": Loopback, "::1": Loopback, "::ffff:127.0.0.1": Loopback, "64:ff9b::127.0.0.1": Loopback,
		"169.254.169.254": Other, "0.0.0.0": Other, "::": Other, "224.0.0.1": Other, "fe80::1": Other, "168.63.129.16": Other,
	} {
		if got := KindOf(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: kind %d, want %d", addr, got, want)
		}
	}
	if got := KindOf(netip.Addr{}); got != Other {
		t.Errorf("no address: kind %d", got)
	}
}
