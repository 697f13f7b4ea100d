package check

import (
	"context"
	"fmt"
)

// manifests reports, as a note, each manifest that declares other sizes than those that are
// stored.
func (k *checker) manifests(ctx context.Context) error {
	for page, err := range contradictions(ctx, k.opt.Catalog) {
		if err != nil {
			return err
		}
		k.mu.Lock()
		k.report.Manifests += page.Compared
		k.report.UnreadableManifests += page.Unreadable
		k.mu.Unlock()
		for _, found := range page.Found {
			detail := fmt.Sprintf("%s has %d bytes, and is declared to have %d", found.Descriptor, found.Stored, found.Declared)
			if found.Others > 0 {
				detail += fmt.Sprintf("; and %d more", found.Others)
			}
			k.add(Finding{
				Problem: DeclaredSize, Digest: found.Manifest, Detail: detail,
				Repositories: []string{found.Repository}, Contradiction: &found,
			})
		}
	}
	return nil
}
