package acme

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/acme"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	// After a failure that the authority reports, the next attempt is made after failurePause.
	// The pause doubles with each further failure, up to maxFailurePause. So at most five
	// attempts are made in the first hour: Let's Encrypt allows five failed validations of a
	// host per hour.
	failurePause    = 2 * time.Minute
	maxFailurePause = time.Hour
)

// batch reads the certificates that other replicas have obtained, and obtains those that are
// missing or due for renewal. It sets m.pause to the time until the next batch.
func (m *Manager) batch(ctx context.Context) (more bool, err error) {
	if err := m.load(ctx); err != nil {
		return false, err
	}
	m.pause = worker.MaxIdle
	var problems []error
	for _, host := range m.o.Hosts {
		if wait := m.untilDue(host); wait > 0 {
			m.pause = min(m.pause, wait)
			continue
		}
		wait, err := m.obtain(ctx, host)
		if err != nil {
			problems = append(problems, fmt.Errorf("obtaining the certificate of %s from %s: %w", host, m.o.DirectoryURL, err))
			continue
		}
		m.pause = min(m.pause, wait)
	}
	return false, errors.Join(problems...)
}

// untilDue returns the time until the host's certificate should be renewed. It is 0 or less if
// there is no certificate, or if less than a third of the certificate's lifetime is left.
func (m *Manager) untilDue(host string) time.Duration {
	c := (*m.certs.Load())[host]
	if c == nil {
		return 0
	}
	leaf := c.pair.Leaf
	return time.Until(leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3))
}

// obtain obtains the host's certificate, unless another replica is obtaining it, has just
// obtained it, or the last attempt failed too recently. It returns how long to wait before the
// host is looked at again. It logs and stores a refusal by the authority, and returns other
// errors, such as those of the network.
func (m *Manager) obtain(ctx context.Context, host string) (time.Duration, error) {
	release, err := m.lease(ctx, host)
	if err != nil {
		return 0, err
	}
	if release == nil {
		return leasedPause, nil
	}
	defer release()
	if err := m.load(ctx); err != nil {
		return 0, err
	}
	if wait := m.untilDue(host); wait > 0 {
		return wait, nil
	}
	last, err := m.lastFailure(ctx, host)
	if err != nil {
		return 0, err
	}
	if last.wait > 0 {
		return last.wait, nil
	}
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	pair, err := m.issue(ctx, host)
	if err != nil {
		return m.failed(ctx, host, last.failures+1, err)
	}
	if err := m.storeCertificate(ctx, host, pair); err != nil {
		return 0, err
	}
	m.attempts.WithLabelValues("issued").Inc()
	m.o.Log.InfoContext(ctx, "the certificate authority has issued a certificate", "host", host,
		"directory", m.o.DirectoryURL, "valid_until", pair.Leaf.NotAfter.Format(time.RFC3339))
	if err := m.load(ctx); err != nil {
		return 0, err
	}
	return max(0, m.untilDue(host)), nil
}

// failed handles an error of issue. If the authority has refused the certificate, failed stores
// that for all replicas, and returns the time until the next attempt. It returns other errors.
func (m *Manager) failed(ctx context.Context, host string, failures int, err error) (time.Duration, error) {
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		m.attempts.WithLabelValues("failed").Inc()
	}
	if !refused(err) {
		return 0, err
	}
	wait := maxFailurePause
	if failures < 6 {
		wait = min(wait, failurePause<<(failures-1))
	}
	if problem, ok := errors.AsType[*acme.Error](err); ok {
		if after, limited := acme.RateLimit(problem); limited {
			wait = max(wait, after)
		}
	}
	ctx = context.WithoutCancel(ctx)
	if stored := m.storeFailure(ctx, host, failures, wait); stored != nil {
		return 0, errors.Join(err, stored)
	}
	m.o.Log.ErrorContext(ctx, "the certificate authority has refused a certificate", "host", host,
		"directory", m.o.DirectoryURL, "error", err, "failures", failures, "again_in", wait)
	return wait, nil
}

// refused says whether err is an answer of the authority, as opposed to an error of the
// network or the database.
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
