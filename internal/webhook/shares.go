package webhook

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/boundedcache"
)

// Shares of the lanes of a process. A receiver is unproven if it hasn't answered this process
// quickly, or has been slow lately. All unproven receivers together leave half of the lanes to
// the others, and those leave a quarter to them.
const (
	namespaceLanes         = maxLanes / 4     // for the webhooks of a namespace
	hostLanes              = maxLanes / 2     // for the webhooks whose URLs name the same host
	quickLanes             = maxLanes * 3 / 4 // for receivers that are not unproven
	unprovenLanes          = maxLanes / 2     // for unproven receivers
	unprovenNamespaceLanes = maxLanes / 8     // for unproven receivers of a namespace
	unprovenHostLanes      = maxLanes / 4     // for unproven receivers of a host
	slowLanes              = maxLanes * 3 / 8 // for receivers that were slow lately
)

const (
	// slowPart of Options.Timeout is the time after which an attempt was slow.
	slowPart = 4
	// slowAge is how long a receiver counts as slow after a slow attempt, and quickAge how long
	// it counts as quick after a quick one.
	slowAge  = 5 * time.Minute
	quickAge = 24 * time.Hour
	// maxStandings is of how many webhooks a process knows how their receivers have answered.
	maxStandings = 10_000
)

// standing says how the receiver of a webhook has answered lately. Receivers with a lesser
// standing get lanes first.
type standing int

const (
	isQuick   standing = iota // it has answered quickly and was not slow lately
	isUnknown                 // this process has sent it nothing lately
	isSlow                    // it took long, or didn't answer in time
)

// attempts says when the last attempts of a kind ended.
type attempts struct{ quick, slow time.Time }

// standings remembers how receivers have answered this process, by webhook. It doesn't go by
// host: somebody could make a host that many use look slow.
type standings struct {
	cache *boundedcache.Cache[uuid.UUID, attempts]
	slow  time.Duration // attempts that take as long are slow
}

func newStandings(timeout time.Duration) standings {
	return standings{boundedcache.New(boundedcache.Options[uuid.UUID, attempts]{Entries: maxStandings}), timeout / slowPart}
}

// note records how long the slowest attempt of a round took. A failure that comes at once, such
// as a refused connection, is as good as an answer: it delays nobody.
func (s standings) note(hook uuid.UUID, took time.Duration, now time.Time) {
	a, _ := s.cache.Get(hook)
	if took >= s.slow {
		a.slow = now
	} else {
		a.quick = now
	}
	s.cache.Set(hook, a)
}

func (s standings) of(hook uuid.UUID, now time.Time) standing {
	a, ok := s.cache.Get(hook)
	switch {
	case ok && now.Sub(a.slow) < slowAge:
		return isSlow
	case ok && now.Sub(a.quick) < quickAge:
		return isQuick
	}
	return isUnknown
}

// share is a webhook with the parts of the lanes that its lane counts for.
type share struct {
	hook
	standing standing
	host     string
}

// shares are the webhooks that have lanes now.
type shares map[uuid.UUID]share

// use is how many lanes there are of each kind.
type use struct {
	quick, unproven, slow          int
	namespaces, unprovenNamespaces map[int64]int
	hosts, unprovenHosts           map[string]int
}

func (s shares) use() use {
	u := use{namespaces: map[int64]int{}, unprovenNamespaces: map[int64]int{}, hosts: map[string]int{}, unprovenHosts: map[string]int{}}
	for _, one := range s {
		u.add(one)
	}
	return u
}

func (u *use) add(s share) {
	u.namespaces[s.Namespace]++
	u.hosts[s.host]++
	if s.standing == isQuick {
		u.quick++
		return
	}
	u.unproven++
	u.unprovenNamespaces[s.Namespace]++
	u.unprovenHosts[s.host]++
	if s.standing == isSlow {
		u.slow++
	}
}

// fits says whether there is room for a further lane.
func (u *use) fits(s share) bool {
	switch {
	case u.namespaces[s.Namespace] >= namespaceLanes, u.hosts[s.host] >= hostLanes:
		return false
	case s.standing == isQuick:
		return u.quick < quickLanes
	case s.standing == isSlow && u.slow >= slowLanes:
		return false
	}
	return u.quick+u.unproven < maxLanes && u.unproven < unprovenLanes &&
		u.unprovenNamespaces[s.Namespace] < unprovenNamespaceLanes && u.unprovenHosts[s.host] < unprovenHostLanes
}

// choose returns the webhooks that get lanes now, and those that have to wait for one: first
// those with the best standing, of these the ones whose namespace has the fewest lanes, of these
// any.
func (s shares) choose(due []share) (chosen, waiting []share) {
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	u := s.use()
	for len(s)+len(chosen) < maxLanes {
		best := -1
		for i, one := range due {
			if u.fits(one) && (best < 0 || u.before(one, due[best])) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		u.add(due[best])
		chosen = append(chosen, due[best])
		due = slices.Delete(due, best, best+1)
	}
	return chosen, due
}

func (u *use) before(a, b share) bool {
	return cmp.Or(cmp.Compare(a.standing, b.standing), cmp.Compare(u.namespaces[a.Namespace], u.namespaces[b.Namespace])) < 0
}
