package pullstats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
)

const (
	// hintTime is how long a GET by digest is taken for the rest of a pull that began
	// with a HEAD by tag.
	hintTime = 30 * time.Second
	// maxHints bounds those of one half of hintTime.
	maxHints = 50_000
	// maxSameHints bounds those of one client and manifest in Redis.
	maxSameHints = 1000
)

// hint names what a client has asked about: who it is, as far as that is known, and
// the manifest.
type hint [16]byte

func hintOf(e audit.Entry) hint {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %s", e.Actor, e.Address, e.UserAgent, e.RepositoryID, e.Digest))
	return hint(sum[:len(hint{})])
}

func (h hint) key() string { return hintPrefix + hex.EncodeToString(h[:]) }

// asked is the tag of a HEAD, and when it was.
type asked struct {
	tag string
	at  time.Time
}

// hints are the tags that clients of this process have just asked about. Behind one
// address, a balancer's for one, there may be many clients that nothing tells apart:
// each HEAD holds for one GET, and the newest for the next. They are in two maps that
// change places, so that old ones need not be looked for.
type hints struct {
	mu       sync.Mutex
	now, old map[hint][]asked
	held     int // in now
	turned   time.Time
}

func (h *hints) put(key hint, tag string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil || h.held >= maxHints || at.Sub(h.turned) > hintTime {
		h.now, h.old, h.held, h.turned = map[hint][]asked{}, h.now, 0, at
	}
	h.now[key] = append(h.now[key], asked{tag, at})
	h.held++
}

// take returns the tag of a hint that still holds, and removes it: "" when there is
// none.
func (h *hints) take(key hint, at time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range []map[hint][]asked{h.now, h.old} {
		list := m[key]
		if len(list) == 0 {
			continue
		}
		last := list[len(list)-1]
		if at.Sub(last.at) > hintTime {
			delete(m, key) // what is before it is older
			continue
		}
		if m[key] = list[:len(list)-1]; len(list) == 1 {
			delete(m, key)
		}
		return last.tag
	}
	return ""
}
