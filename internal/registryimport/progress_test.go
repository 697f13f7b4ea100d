package registryimport_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"regexp"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/registryimport"
)

// filesAfter is a store that lists the files of repositories only after something has happened.
type filesAfter struct {
	registryimport.Store
	what <-chan struct{}
}

func (f filesAfter) Files(ctx context.Context, dir string) iter.Seq2[blob.Object, error] {
	select {
	case <-f.what:
	case <-ctx.Done():
	}
	return f.Store.Files(ctx, dir)
}

// TestImportTellsItsProgress: the repositories that are to be imported are counted meanwhile, and what is done of
// them grows by manifests up to their number.
func TestImportTellsItsProgress(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	for i := range 12 {
		o.manifest(fmt.Sprintf("acme/app%d", i%3), o.image(fmt.Sprint(i), nil), longAgo, fmt.Sprint(i))
	}
	o.manifest("other/app", o.image("other", nil), longAgo, "v1")
	whole, last, inParts, counted := int64(0), registryimport.Report{}, false, make(chan struct{})
	r, skipped := o.run(b, func(options *registryimport.Options) {
		options.Repositories, options.Parallel = regexp.MustCompile("^acme/"), 1
		options.Store = filesAfter{options.Store, counted}
		options.Progress = func(r registryimport.Report) {
			if r.Whole > 0 && whole == 0 {
				close(counted)
			}
			if r.Whole < whole || r.Parts < last.Parts-1e-9 && r.Repositories == last.Repositories && r.Manifests != last.Manifests {
				t.Errorf("%+v after %+v", r, last)
			}
			inParts = inParts || r.Parts > float64(r.Repositories)+0.2
			whole, last = r.Whole, r
		}
	})
	if r.Whole != 3 || r.Repositories != 3 || math.Abs(r.Parts-3) > 1e-6 || !inParts || len(skipped) > 0 {
		t.Errorf("%+v, parts: %v, skipped %q", r, inParts, skipped)
	}
	if again, _ := o.run(b, nil); again.Whole != 0 {
		t.Errorf("without anybody to tell it, %d repositories were counted", again.Whole)
	}
}
