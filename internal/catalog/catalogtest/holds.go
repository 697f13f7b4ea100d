package catalogtest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// Hold lets the reporter prod of a namespace, or of the whole registry, hold these digests, and
// no others.
func (b Bundle) Hold(t *testing.T, namespace string, digests ...oci.Digest) {
	t.Helper()
	h, err := hold.New(hold.Options{DB: b.DB})
	if err != nil {
		t.Fatal(err)
	}
	r := hold.Report{Full: true, By: hold.By{MayEnd: true}}
	for _, d := range digests {
		r.Items = append(r.Items, hold.Item{Digest: d, UsedBy: "pod web"})
	}
	place := hold.Place{Namespace: namespace, Reporter: "prod"}
	// A digest that a list leaves out stays held for a while, so the reporter begins anew.
	if err := h.Delete(context.WithoutCancel(t.Context()), place); err != nil && oci.CodeOf(err) != oci.NameUnknown {
		t.Fatal(err)
	}
	if _, err := h.Report(context.WithoutCancel(t.Context()), place, r); err != nil {
		t.Fatal(err)
	}
}

// WantHeld fails the test unless err says that prod holds what was to be deleted.
func WantHeld(t *testing.T, what string, err error) {
	t.Helper()
	e, ok := errors.AsType[*oci.Error](err)
	if !ok || e.Code != oci.Denied || e.HTTPStatus() != 409 || !strings.Contains(e.Error(), "held by prod (pod web) until ") {
		t.Errorf("deleting %s: %v, want a refusal that names the reporter", what, err)
	}
}
