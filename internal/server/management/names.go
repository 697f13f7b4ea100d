package management

import (
	"context"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// The audit log and the runs of auto-pruning keep what was in a namespace that is deleted. Somebody
// else may make a namespace under the same name, and is shown nothing of that: only those who
// operate the registry see what has the same name. So it is with a repository's log, which the
// namespace's administrators may see too.

// seen returns the id of the namespace of this name to whose rows the client is limited, and when it
// was made; 0 if the client may see the rows of all namespaces that have had the name.
func (a *API) seen(ctx context.Context, namespace string) (id int64, born time.Time, err error) {
	err = a.server.Authorize(ctx, auth.Operate, auth.Registry)
	if code := oci.CodeOf(err); code != oci.Denied && code != oci.Unauthorized {
		return 0, born, err
	}
	return a.catalog.NamespaceRow(ctx, namespace)
}

// logFilter returns the filter of a request for a part of the log, limited to what the client may see.
func (a *API) logFilter(ctx context.Context, in api.LogExport) (audit.Filter, error) {
	f, err := auditFilter(in.LogAt, in.LogFilter)
	if err != nil || in.Namespace == "" && in.Repository == "" {
		return f, err
	}
	namespace := in.Namespace
	if namespace == "" {
		namespace, _, _ = strings.Cut(in.Repository, "/")
	}
	if f.NamespaceID, f.Born, err = a.seen(ctx, namespace); err != nil || f.NamespaceID == 0 || in.Repository == "" {
		return f, err
	}
	err = a.server.Authorize(ctx, auth.Administer, auth.OfNamespace(namespace))
	if code := oci.CodeOf(err); code != oci.Denied && code != oci.Unauthorized {
		return f, err
	}
	f.RepositoryID, err = a.catalog.RepositoryID(ctx, in.Repository)
	return f, err
}
