package management

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/diskspace"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/usage"
)

// addUsage binds the operation that shows what is stored.
func (a *API) addUsage() {
	serve(a, api.GetUsage, a.usage)
	serve(a, api.GetNamespaceUsage, a.namespaceUsage)
}

func (a *API) usage(ctx context.Context, in *api.UsageQuery) (*api.RegistryUsage, error) {
	o := a.opt.System
	if o.Database == nil {
		return nil, oci.Errorf(oci.Unavailable, "this process measures no sizes")
	}
	out := &api.RegistryUsage{Disks: []diskspace.Disk{}}
	err := usage.Read(ctx, o.Database, func(tx pgx.Tx) (err error) {
		if out.RegistrySums, err = usage.Registry(ctx, tx); err != nil {
			return err
		}
		if out.Namespaces, err = usage.Namespaces(ctx, tx, in.Limit); err != nil {
			return err
		}
		if out.Repositories, err = usage.Repositories(ctx, tx, in.Limit); err != nil {
			return err
		}
		out.Days, err = usage.Days(ctx, tx, in.Days)
		return err
	})
	if errors.Is(err, usage.ErrNotMeasured) {
		return nil, oci.Errorf(oci.Unavailable, "%v", err)
	} else if err != nil {
		return nil, err
	}
	if o.Disks != nil {
		// As on the page System, what is measured is shown though a disk doesn't answer.
		err := within(ctx, func(ctx context.Context) error {
			list, err := o.Disks(ctx)
			out.Disks = append(out.Disks, list...)
			return err
		})
		if err != nil {
			a.server.Warn(ctx, "predicting the space of disks failed", err)
		}
	}
	return out, nil
}

// namespaceUsage describes what a namespace stores.
func (a *API) namespaceUsage(ctx context.Context, in *api.NamespaceUsageQuery) (*api.NamespaceUsage, error) {
	o := a.opt.System
	if o.Database == nil {
		return nil, oci.Errorf(oci.Unavailable, "this process measures no sizes")
	}
	id, _, err := a.catalog.NamespaceRow(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	var after *usage.Place
	if _, err := parseCursor(in.NextPage, "usage of "+in.Namespace, &after); err != nil {
		return nil, err
	}
	out := new(api.NamespaceUsage)
	err = usage.Read(ctx, o.Database, func(tx pgx.Tx) (err error) {
		if out.NamespaceSums, err = usage.Namespace(ctx, tx, id); err != nil {
			return err
		}
		var next *usage.Place
		if out.Repositories, next, err = usage.RepositoriesOf(ctx, tx, id, after, in.Most()); err != nil {
			return err
		}
		if next != nil {
			out.NextPage = cursor("usage of "+in.Namespace, next)
		}
		out.Days, err = usage.DaysOf(ctx, tx, id, in.Days)
		return err
	})
	if errors.Is(err, usage.ErrNotMeasured) {
		return nil, oci.Errorf(oci.Unavailable, "%v", err)
	} else if err != nil {
		return nil, err
	}
	out.Pruned = []autoprune.PrunedDay{}
	if a.opt.Autoprune != nil {
		if out.Pruned, err = a.opt.Autoprune.PrunedByDay(ctx, id, in.Days); err != nil {
			return nil, err
		}
	}
	operates, err := a.allows(ctx, auth.Operate, auth.Registry)
	if !operates {
		out.Own = nil
	}
	return out, err
}
