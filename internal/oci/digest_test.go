package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	godigest "github.com/opencontainers/go-digest"
)

const (
	emptySHA256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	emptySHA512 = "sha512:cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce" +
		"47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
)

func TestParseDigest(t *testing.T) {
	t.Parallel()
	hex64 := strings.Repeat("a", 64)
	hex128 := strings.Repeat("0", 128)
	tests := []struct {
		in   string
		want error
	}{
		{"sha256:" + hex64, nil},
		{"sha512:" + hex128, nil},
		{emptySHA256, nil},
		{emptySHA512, nil},
		{"", ErrDigestInvalid},
		{":", ErrDigestInvalid},
		{"sha256", ErrDigestInvalid},
		{"sha256:", ErrDigestInvalid},
		{":" + hex64, ErrDigestInvalid},
		{hex64, ErrDigestInvalid},
		{"sha256:" + hex64[1:], ErrDigestInvalid},
		{"sha256:" + hex64 + "a", ErrDigestInvalid},
		{"sha256:" + hex128, ErrDigestInvalid},
		{"sha512:" + hex64, ErrDigestInvalid},
		{"sha256:" + strings.ToUpper(hex64), ErrDigestInvalid},
		{"sha256:" + strings.Repeat("g", 64), ErrDigestInvalid},
		{"SHA256:" + hex64, ErrDigestInvalid},
		{"sha256:" + hex64[:63] + "\n", ErrDigestInvalid},
		{"sha256:../" + hex64[3:], ErrDigestInvalid},
		{"md5:d41d8cd98f00b204e9800998ecf8427e", ErrDigestUnsupported},
		{"sha384:" + strings.Repeat("a", 96), ErrDigestUnsupported},
		{"blake3:" + hex64, ErrDigestUnsupported},
		{"multihash+base58:QmRZxt2b1FVZPNqd8hsiykDL3TdBDeTSPX9Kv46HmX4Gx8", ErrDigestUnsupported},
		{"md5:", ErrDigestInvalid},
		{"md5:a/b", ErrDigestInvalid},
		{"md5+:aa", ErrDigestInvalid},
		{"+md5:aa", ErrDigestInvalid},
		{"a++b:aa", ErrDigestInvalid},
	}
	for _, test := range tests {
		d, err := ParseDigest(test.in)
		if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("ParseDigest(%q) = %v, want %v", test.in, err, test.want)
		}
		if err == nil && d.String() != test.in {
			t.Errorf("ParseDigest(%q).String() = %q", test.in, d)
		}
		if err != nil && !d.IsZero() {
			t.Errorf("ParseDigest(%q) failed and returned %q", test.in, d)
		}
	}
}

func TestDigestErrorsTellApart(t *testing.T) {
	t.Parallel()
	_, invalid := ParseDigest("sha256:zz")
	_, unsupported := ParseDigest("md5:aa")
	if errors.Is(invalid, ErrDigestUnsupported) || errors.Is(unsupported, ErrDigestInvalid) {
		t.Errorf("the errors match each other: %v, %v", invalid, unsupported)
	}
}

func TestComputeAgreesWithHashAndGoDigest(t *testing.T) {
	t.Parallel()
	for _, alg := range []Algorithm{SHA256, SHA512} {
		for _, content := range []string{"", "{}", strings.Repeat("x", 5000)} {
			h := alg.New()
			if _, err := h.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
			got := Compute(alg, []byte(content))
			want := godigest.Algorithm(alg.String()).FromString(content)
			if got.String() != want.String() || FromHash(alg, h) != got {
				t.Errorf("%s of %d bytes: Compute %s, FromHash %s, go-digest %s", alg, len(content), got, FromHash(alg, h), want)
			}
			if got.Algorithm() != alg || got.Hex() != want.Encoded() {
				t.Errorf("%s: Algorithm %s, Hex %s", got, got.Algorithm(), got.Hex())
			}
		}
	}
}

func TestDigestBytes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{emptySHA256, emptySHA512} {
		d, err := ParseDigest(s)
		if err != nil {
			t.Fatal(err)
		}
		b := d.Bytes()
		if b[0] != byte(d.Algorithm()) || len(b) != 1+d.Algorithm().Size() {
			t.Errorf("%s: %x", d, b)
		}
		back, err := DigestFromBytes(b)
		if err != nil || back != d {
			t.Errorf("DigestFromBytes(%x) = %s, %v", b, back, err)
		}
	}
	for _, test := range []struct {
		in   []byte
		want error
	}{
		{nil, ErrDigestInvalid},
		{[]byte{1}, ErrDigestInvalid},
		{make([]byte, 33), ErrDigestUnsupported},
		{append([]byte{3}, make([]byte, 32)...), ErrDigestUnsupported},
		{append([]byte{2}, make([]byte, 32)...), ErrDigestInvalid},
		{append([]byte{1}, make([]byte, 33)...), ErrDigestInvalid},
	} {
		if _, err := DigestFromBytes(test.in); !errors.Is(err, test.want) {
			t.Errorf("DigestFromBytes(%x) = %v, want %v", test.in, err, test.want)
		}
	}
}

func TestZeroDigest(t *testing.T) {
	t.Parallel()
	var d Digest
	if !d.IsZero() || d.String() != "" || d.Algorithm() != 0 || d.Bytes() != nil || d.Hex() != "" {
		t.Errorf("zero digest: %q, %v, %x, %q", d.String(), d.Algorithm(), d.Bytes(), d.Hex())
	}
	if Compute(SHA256, nil).IsZero() {
		t.Error("the digest of nothing is zero")
	}
}

func TestDigestJSON(t *testing.T) {
	t.Parallel()
	in := map[string]Digest{"a": Compute(SHA256, nil), "b": {}}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"a":"` + emptySHA256 + `","b":""}`; string(b) != want {
		t.Errorf("got %s, want %s", b, want)
	}
	var out map[string]Digest
	if err := json.Unmarshal(b, &out); err != nil || out["a"] != in["a"] || !out["b"].IsZero() {
		t.Errorf("got %v, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`{"a":"sha256:zz"}`), &out); !errors.Is(err, ErrDigestInvalid) {
		t.Errorf("a bad digest: %v", err)
	}
}

func TestAlgorithms(t *testing.T) {
	t.Parallel()
	for _, alg := range []Algorithm{SHA256, SHA512} {
		back, err := ParseAlgorithm(alg.String())
		if err != nil || back != alg {
			t.Errorf("ParseAlgorithm(%q) = %v, %v", alg, back, err)
		}
		if alg.New().Size() != alg.Size() {
			t.Errorf("%s: sizes differ", alg)
		}
	}
	for _, name := range []string{"", "SHA256", "sha-256", "md5"} {
		if _, err := ParseAlgorithm(name); !errors.Is(err, ErrDigestUnsupported) {
			t.Errorf("ParseAlgorithm(%q) = %v", name, err)
		}
	}
}

func TestMisuseOfAlgorithmsPanics(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"New":      func() { Algorithm(0).New() },
		"Compute":  func() { Compute(Algorithm(9), nil) },
		"FromHash": func() { FromHash(SHA512, SHA256.New()) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s didn't panic", name)
				}
			}()
			f()
		}()
	}
}

func FuzzDigest(f *testing.F) {
	for _, s := range []string{"", ":", emptySHA256, emptySHA512, "md5:aa", "sha256:zz", strings.ToUpper(emptySHA256)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		ref := godigest.Digest(s)
		refErr := ref.Validate()
		supported := strings.HasPrefix(s, "sha256:") || strings.HasPrefix(s, "sha512:")
		if want := refErr == nil && supported; (err == nil) != want {
			t.Fatalf("ParseDigest(%q) = %v, go-digest says %v", s, err, refErr)
		}
		if err != nil {
			if errors.Is(err, ErrDigestInvalid) == errors.Is(err, ErrDigestUnsupported) {
				t.Fatalf("ParseDigest(%q) = %v, which is not exactly one of the two errors", s, err)
			}
			return
		}
		back, err := DigestFromBytes(d.Bytes())
		if err != nil || back != d || d.String() != s || !bytes.Equal(back.Bytes(), d.Bytes()) {
			t.Fatalf("%q doesn't survive its bytes: %q, %v", s, back, err)
		}
		if d.Algorithm().String() != ref.Algorithm().String() || d.Hex() != ref.Encoded() {
			t.Fatalf("%q: %s %s", s, d.Algorithm(), d.Hex())
		}
	})
}

func TestParseDigestAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseDigest(emptySHA256); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParseDigest(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseDigest(emptySHA256); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigestBytes(b *testing.B) {
	d := Compute(SHA256, nil)
	b.ReportAllocs()
	for b.Loop() {
		if len(d.Bytes()) != 33 {
			b.Fatal("wrong length")
		}
	}
}

func BenchmarkDigestFromBytes(b *testing.B) {
	raw := Compute(SHA256, nil).Bytes()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DigestFromBytes(raw); err != nil {
			b.Fatal(err)
		}
	}
}
