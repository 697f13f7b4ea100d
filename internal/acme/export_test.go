package acme

import "context"

// Batch runs one batch of the loop, as Run does.
func (m *Manager) Batch(ctx context.Context) error {
	_, err := m.batch(ctx)
	return err
}
