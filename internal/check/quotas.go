package check

import (
	"context"
	"fmt"

	"github.com/purser-registry/purser/internal/quota"
)

// quotas compares what each quota says that its namespace uses with the namespace's content. The
// numbers and the content are read in one snapshot, so pushes don't make them differ. Triggers
// keep them equal; they differ only if somebody has changed rows by hand.
func (k *checker) quotas(ctx context.Context) error {
	quotas := quota.New(quota.Options{DB: k.opt.Catalog.DB()})
	_, err := quotas.Drifts(ctx, func(d quota.Drift) error {
		f := Finding{Problem: QuotaUsage, Detail: fmt.Sprintf(
			"the quota of namespace %s says %d bytes, %d repositories, %d tags; there are %d bytes, %d repositories, %d tags", d.Namespace,
			d.Stored.Bytes, d.Stored.Repositories, d.Stored.Tags, d.Content.Bytes, d.Content.Repositories, d.Content.Tags)}
		if k.opt.Repair {
			if err := quotas.Repair(ctx, d); err != nil {
				return err
			}
			f.Repaired = true
		}
		k.add(f)
		return nil
	})
	return err
}
