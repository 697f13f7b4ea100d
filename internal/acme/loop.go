package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/acme"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	// After a failure, the next attempt is made after failurePause. The pause doubles with each
	// further failure, up to maxFailurePause, and isn't longer even if the authority says so. So
	// at most five attempts are made in the first hour: Let's Encrypt allows five failed
	// validations of a host per hour.
	failurePause    = 2 * time.Minute
	maxFailurePause = 24 * time.Hour
	// shortest is the time for which a new certificate should be valid, at least.
	shortest = 10 * time.Second
	// maxReason is how much of an error the log gets, in bytes: the authority writes a part of it.
	maxReason = 1000
)

// batch reads the certificates that other replicas have obtained, and obtains those that are
// missing or due for renewal. It sets m.pause to the time until the next batch.
func (m *Manager) batch(ctx context.Context) (more bool, err error) {
	now := m.retry.Swap(false)
	if now {
		clear(m.quiet)
	}
	if err := m.load(ctx); err != nil {
		m.again(now)
		return false, err
	}
	m.pause = worker.MaxIdle
	var problems []error
	for _, host := range m.o.Hosts {
		if wait := m.untilDue(host); wait > 0 {
			m.pause = min(m.pause, wait)
			continue
		}
		wait, err := m.obtain(ctx, host, now)
		if err != nil {
			problems = append(problems, fmt.Errorf("obtaining the certificate of %s from %s: %w", host, m.o.DirectoryURL, err))
			continue
		}
		m.pause = min(m.pause, wait)
	}
	return false, errors.Join(problems...)
}

// again makes the next batch try at once if this one was to do so and couldn't.
func (m *Manager) again(now bool) {
	if now {
		m.retry.Store(true)
	}
}

// untilDue returns the time until the host's certificate should be renewed. It is 0 or less if
// there is no certificate, or if less than a third of the time is left that it had when it was
// stored. That time is shorter than the certificate's lifetime if this machine's clock runs
// ahead; then a new certificate isn't due as soon as it is there.
func (m *Manager) untilDue(host string) time.Duration {
	c := (*m.certs.Load())[host]
	if c == nil || c.lost {
		return 0
	}
	begin := c.pair.Leaf.NotBefore
	if c.since.After(begin) {
		begin = c.since
	}
	end := c.pair.Leaf.NotAfter
	return time.Until(end.Add(-end.Sub(begin) / 3))
}

// obtain obtains the host's certificate, unless another replica is obtaining it, has just
// obtained it, or the last attempt failed too recently and `now` doesn't say to try nevertheless.
// It returns how long to wait before the host is looked at again. It logs and stores a failure
// that the authority has a part in, and returns other errors, such as those of the network.
func (m *Manager) obtain(ctx context.Context, host string, now bool) (time.Duration, error) {
	if wait := time.Until(m.quiet[host]); wait > 0 {
		return wait, nil
	}
	release, err := m.lease(ctx, host)
	if err != nil {
		m.again(now)
		return 0, err
	}
	if release == nil {
		m.again(now)
		return leasedPause, nil
	}
	defer release()
	if err := m.load(ctx); err != nil {
		m.again(now)
		return 0, err
	}
	if wait := m.untilDue(host); wait > 0 {
		return wait, nil
	}
	last, err := m.lastFailure(ctx, host)
	if err != nil {
		m.again(now)
		return 0, err
	}
	if last.wait > 0 && !now {
		return last.wait, nil
	}
	pair := m.unstored[host]
	if pair == nil || usable(pair.Leaf, host, time.Now()) != nil {
		a := &authority{next: m.client.Transport}
		ctx, cancel := context.WithTimeout(ctx, m.issueTimeout)
		defer cancel()
		if pair, err = m.issue(ctx, host, a, last.clock); err != nil {
			return m.failed(ctx, host, last.failures+1, a, err)
		}
		m.attempts.WithLabelValues("issued").Inc()
	}
	return m.keep(ctx, host, pair, last)
}

// keep stores a new certificate, and returns how long to wait before the host is looked at again.
// If the database doesn't take the certificate, the next call of obtain stores it, instead of
// asking for another one.
func (m *Manager) keep(ctx context.Context, host string, pair *tls.Certificate, last failure) (time.Duration, error) {
	m.unstored[host] = pair
	if err := m.storeCertificate(ctx, host, pair); err != nil {
		return 0, err
	}
	delete(m.unstored, host)
	m.o.Log.InfoContext(ctx, "the certificate authority has issued a certificate", "host", host,
		"directory", m.o.DirectoryURL, "valid_until", pair.Leaf.NotAfter.Format(time.RFC3339))
	left := time.Until(pair.Leaf.NotAfter)
	if left < shortest || left < pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)/2 {
		wait := pauseAfter(last.failures + 1)
		if err := m.storeFailure(ctx, host, failure{failures: last.failures + 1, wait: wait, clock: true}); err != nil {
			m.quiet[host] = time.Now().Add(wait)
			return 0, err
		}
		m.o.Log.WarnContext(ctx, "less than half of the new certificate's lifetime is left; is this machine's clock right?", "host", host,
			"valid_from", pair.Leaf.NotBefore.Format(time.RFC3339), "valid_until", pair.Leaf.NotAfter.Format(time.RFC3339), "not_again_before", wait)
	}
	if err := m.load(ctx); err != nil {
		return 0, err
	}
	return max(0, m.untilDue(host)), nil
}

// pauseAfter returns how long to pause after the given number of failures in a row.
func pauseAfter(failures int) time.Duration {
	wait := failurePause
	for i := 1; i < failures && wait < maxFailurePause; i++ {
		wait *= 2
	}
	return min(wait, maxFailurePause)
}

// failed handles an error of issue. If the authority has answered, whatever it was, failed stores
// the failure for all replicas, and returns the time until the next attempt: each attempt counts
// for the authority's limits. It returns other errors.
func (m *Manager) failed(ctx context.Context, host string, failures int, a *authority, err error) (time.Duration, error) {
	stopped := errors.Is(ctx.Err(), context.Canceled)
	if !stopped {
		m.attempts.WithLabelValues("failed").Inc()
	}
	if answered, _ := a.state(); !answered || stopped {
		return 0, shortened{err}
	}
	wait := pauseAfter(failures)
	if problem, ok := errors.AsType[*acme.Error](err); ok {
		wait = max(wait, retryAfter(problem.Header))
	}
	ctx = context.WithoutCancel(ctx)
	f := failure{failures: failures, wait: wait, clock: errors.Is(err, errClock)}
	if stored := m.storeFailure(ctx, host, f); stored != nil {
		m.quiet[host] = time.Now().Add(wait)
		return 0, errors.Join(shortened{err}, stored)
	}
	text := "the certificate authority has refused a certificate"
	if !refused(err) {
		text = "obtaining a certificate has failed; one that is in use stays"
	}
	m.o.Log.ErrorContext(ctx, text, "host", host, "directory", m.o.DirectoryURL, "error", shortened{err}, "failures", failures, "again_in", wait)
	return wait, nil
}

// refused says whether err is a refusal that the authority has given a reason for.
func refused(err error) bool {
	if problem, ok := errors.AsType[*acme.Error](err); ok {
		return problem.StatusCode < 500
	}
	if _, ok := errors.AsType[*acme.AuthorizationError](err); ok {
		return true
	}
	_, ok := errors.AsType[*acme.OrderError](err)
	return ok || errors.Is(err, errNoChallenge)
}

// shortened is an error whose text isn't longer than the log should have.
type shortened struct{ error }

func (s shortened) Error() string {
	text := s.error.Error()
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

func (s shortened) Unwrap() error { return s.error }
