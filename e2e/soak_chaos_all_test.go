//go:build all

package e2e

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// kill ends one replica or all of them, at random times, by SIGKILL or SIGTERM, and starts
// them again. It returns when the traffic ends.
func (s *soak) kill(rng *rand.Rand) {
	for s.sleep(s.pace + time.Duration(rng.Int64N(int64(s.pace)))) {
		first, n := rng.IntN(len(s.replicas)), 1
		if rng.IntN(3) == 0 {
			n = len(s.replicas)
		}
		gently := rng.IntN(5) == 0
		for i := range n {
			s.endReplica(s.replicas[(first+i)%len(s.replicas)], gently)
		}
		s.sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
		for i := range n {
			s.startAgain(s.replicas[(first+i)%len(s.replicas)])
		}
	}
}

func (s *soak) endReplica(r *replica, gently bool) {
	r.down()
	r.reg.checkRaces()
	if gently {
		s.stats.count("stopped")
		if err := r.reg.p.signal(syscall.SIGTERM, stopWithin); err != nil {
			s.violate(nil, "%s after SIGTERM: %v\n%s", r.name, err, r.reg.p.out.tail(40))
		}
		return
	}
	s.stats.count("killed")
	r.reg.p.kill()
}

// startAgain starts a replica again. While the store fails, a start may fail too; then
// startAgain tries again. Any other failed start ends the soak.
func (s *soak) startAgain(r *replica) {
	for {
		from := time.Now()
		err := r.reg.tryStart()
		if err == nil {
			r.up()
			return
		}
		if !s.store.troubles().met(from, time.Now()) {
			s.violate(nil, "%s doesn't start again: %v", r.name, err)
			return
		}
	}
}

// ail makes the store fail at random times until the traffic ends: the proxy in front of the
// store then lets a random share of the requests fail, from a tenth to all of them.
func (s *soak) ail(rng *rand.Rand) {
	defer s.store.proxy.fail(0)
	for s.sleep(time.Duration(rng.Int64N(int64(s.pace)))) {
		share := []float64{0.1, 0.3, 0.6, 1}[rng.IntN(4)]
		s.store.proxy.fail(share)
		s.stats.count(fmt.Sprintf("store failing %.0f%%", share*100))
		s.sleep(time.Duration(rng.Int64N(int64(s.pace / 2))))
		s.store.proxy.fail(0)
	}
}

// sleep waits for the time d. It returns false if the traffic ends before.
func (s *soak) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.traffic.Done():
		return false
	case <-t.C:
		return true
	}
}
