package acme

import (
	"context"
	"time"
)

// Batch runs one batch of the loop, as Run does.
func (m *Manager) Batch(ctx context.Context) error {
	_, err := m.batch(ctx)
	return err
}

// SetTimeouts changes the limits of a request to the authority and of an issuance.
func (m *Manager) SetTimeouts(request, issue time.Duration) {
	m.client.Timeout, m.issueTimeout = request, issue
}

// SleepAfterFailure changes how long the loop sleeps after a failure.
func (m *Manager) SleepAfterFailure(d time.Duration) { m.loop = m.newLoop(d) }
