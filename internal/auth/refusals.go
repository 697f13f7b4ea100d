package auth

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/oci"
)

// RecordRefusal writes an audit entry of a log-in that is refused although the provider has
// identified the person. It writes nothing if nobody was identified, or if `why` isn't the
// client's fault.
func (c *Control) RecordRefusal(ctx context.Context, who identity.Identity, why error) {
	e, ok := errors.AsType[*oci.Error](why)
	if who.Subject == "" || !ok || e.HTTPStatus() >= 500 {
		return
	}
	detail := map[string]any{"source": who.Source, "subject": who.Subject, "reason": e.Message}
	if who.Name != "" {
		detail["account"] = who.Name
	}
	if err := audit.Append(ctx, c.db.Pool, audit.Entry{Kind: audit.LoginFailure, Detail: detail}); err != nil {
		c.log.WarnContext(ctx, "writing a refused log-in to the audit log", "error", err)
	}
}
