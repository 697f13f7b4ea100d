package distribution_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// labelled pushes a configuration with labels, and returns an image's manifest with it.
func (r *registry) labelled(t *testing.T, path string, labels map[string]any, more object) string {
	t.Helper()
	config := r.Push(t, path, encode(t, object{"os": "linux", "architecture": "amd64", "config": object{"Labels": labels}}))
	return image(t, config, nil, more)
}

// pushed pushes the manifest under the tag, and returns the warnings.
func (r *registry) pushed(t *testing.T, path, tag, manifest string) string {
	t.Helper()
	return strings.Join(r.Do(t, "PUT", "/v2/"+path+"/manifests/"+tag, manifest).Want(t, 201, "").Header.Values("Warning"), "\n")
}

type labelledTag struct {
	EndTS     int64 `json:"end_ts"`
	Immutable bool  `json:"immutable"`
}

func (r *registry) described(t *testing.T, path, tag string) (d labelledTag) {
	t.Helper()
	r.Manage(t, "GET", "/repository/"+path+"/tag/"+tag, "").Into(t, 200, &d)
	return d
}

// allow lets labels decide about the tags of the namespace app.
func (r *registry) allow(t *testing.T, expiry, immutable bool) {
	t.Helper()
	r.Manage(t, "PUT", "/organization/app/taglabels", encode(t, object{"expires_after": expiry, "immutable": immutable})).WantStatus(t, 204)
	var now protection.TagLabels
	r.Manage(t, "GET", "/organization/app/taglabels", "").Into(t, 200, &now)
	if now != (protection.TagLabels{Expiry: expiry, Immutable: immutable}) {
		t.Errorf("the setting is %+v", now)
	}
}

// expiresIn checks that a tag expires in about the time `want`; 0: not at all.
func (r *registry) expiresIn(t *testing.T, path, tag string, want time.Duration) {
	t.Helper()
	switch at := r.described(t, path, tag).EndTS; {
	case want == 0 && at != 0:
		t.Errorf("%s expires at %s", tag, time.Unix(at, 0))
	case want == 0:
	case at == 0 || time.Until(time.Unix(at, 0)) > want+time.Minute || time.Until(time.Unix(at, 0)) < want-5*time.Minute:
		t.Errorf("%s expires at %s, not in %s", tag, time.Unix(at, 0), want)
	}
}

// TestLabelsGiveExpirations: labels count where the namespace allows it, a bad value gives nothing
// and says so, and each push decides anew.
func TestLabelsGiveExpirations(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "app/web"
	days := r.labelled(t, path, map[string]any{"quay.expires-after": "2d"}, nil)
	if w := r.pushed(t, path, "off", days); w != "" {
		t.Errorf("a namespace that allows no labels warns: %s", w)
	}
	r.expiresIn(t, path, "off", 0)
	r.allow(t, true, false)
	for i, test := range []struct {
		value, other string
		want         time.Duration
		warning      string
	}{
		{value: "2d", want: 48 * time.Hour},
		{value: " 4w ", want: 4 * 7 * 24 * time.Hour},
		{value: "1h", want: time.Hour},
		{value: "1y", want: 365 * 24 * time.Hour},
		{value: "2d", other: "3d", want: 72 * time.Hour},
		{value: "6m", warning: "less than an hour"},
		{value: "0", warning: "isn't a number"},
		{value: "0d", warning: "less than an hour"},
		{value: "-1d", warning: "isn't a number"},
		{value: "soon", warning: "isn't a number"},
		{value: "", warning: "isn't a number"},
		{value: "9999999999999999999999d", warning: "longer than"},
		{value: "101y", warning: "longer than"},
	} {
		tag, labels := fmt.Sprintf("v%d", i), map[string]any{"quay.expires-after": test.value}
		if test.other != "" {
			labels["io.purser.expires-after"] = test.other
		}
		w := r.pushed(t, path, tag, r.labelled(t, path, labels, nil))
		if !strings.Contains(w, test.warning) || test.warning == "" && w != "" {
			t.Errorf("%q: the warning is %q", test.value, w)
		}
		r.expiresIn(t, path, tag, test.want)
	}

	r.pushed(t, path, "again", days)
	r.expiresIn(t, path, "again", 48*time.Hour)
	r.pushed(t, path, "again", r.Simple(t, path, "plain", nil)) // takes the date away
	r.expiresIn(t, path, "again", 0)
	at := time.Now().Add(1000 * time.Hour).Unix()
	r.Manage(t, "PUT", "/repository/"+path+"/tag/again", fmt.Sprintf(`{"expiration": %d}`, at)).WantStatus(t, 201)
	f := r.Since(t)
	r.pushed(t, path, "again", days)
	r.expiresIn(t, path, "again", 48*time.Hour)
	if e := r.Entries(t, audit.Filter{From: f.From, Kinds: []audit.Kind{audit.PushRepo}}); len(e) != 1 ||
		!strings.Contains(fmt.Sprintf("%s", e[0].Detail), "old_expiration_date") || !strings.Contains(fmt.Sprintf("%s", e[0].Detail), "\"expiration_date") {
		t.Errorf("a push that replaces a date that somebody set is logged as %+v", e)
	}
	r.Manage(t, "POST", "/repository/"+path+"/tagprotection", `{"pattern": "^kept$"}`).WantStatus(t, 201)
	if w := r.pushed(t, path, "kept", days); !strings.Contains(w, "protected") {
		t.Errorf("the warning for a protected tag is %q", w)
	}
	r.expiresIn(t, path, "kept", 0)
	r.allow(t, false, false)
	r.pushed(t, path, "v0", days)
	r.expiresIn(t, path, "v0", 0)
	r.Manage(t, "PUT", "/organization/nobody/taglabels", `{"expires_after": true, "immutable": false}`).WantStatus(t, 404)
}

// TestLabelsMakeTagsImmutable: nobody moves or deletes such a tag until a maintainer undoes it.
func TestLabelsMakeTagsImmutable(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "app/web"
	one := r.labelled(t, path, map[string]any{"io.purser.immutable": "true", "quay.expires-after": "2d"}, nil)
	two := r.Simple(t, path, 2, nil)
	r.Put(t, path, "early", one)
	r.allow(t, true, true)
	d := r.Put(t, path, "v1", one)
	if got := r.described(t, path, "v1"); !got.Immutable || got.EndTS != 0 {
		t.Errorf("%+v", got)
	}
	if r.described(t, path, "early").Immutable {
		t.Error("the setting changed a tag that existed")
	}
	r.Put(t, path, "v1", one) // the same is welcome
	const v1, managed = "/v2/" + path + "/manifests/v1", "/repository/" + path + "/tag/v1"
	r.Do(t, "PUT", v1, two).Want(t, 409, oci.Denied)
	r.Do(t, "DELETE", v1, "").Want(t, 409, oci.Denied)
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/"+d.String(), "").Want(t, 409, oci.Denied)
	r.Put(t, path, "other", two)
	r.Manage(t, "POST", managed+"/restore", encode(t, object{"manifest_digest": digest(two)})).WantStatus(t, 409)
	r.Manage(t, "PUT", managed, `{"expiration": 4102444800}`).WantStatus(t, 409)
	r.Manage(t, "DELETE", managed, "").WantStatus(t, 409)
	r.Manage(t, "PUT", managed, `{"immutable": false}`).WantStatus(t, 201)
	r.Do(t, "PUT", v1, two).Want(t, 201, "")

	r.Manage(t, "PUT", "/repository/"+path+"/tag/other", `{"expiration": 4102444800}`).WantStatus(t, 201)
	r.Manage(t, "PUT", "/repository/"+path+"/tag/other", `{"immutable": true}`).WantStatus(t, 201)
	if got := r.described(t, path, "other"); !got.Immutable || got.EndTS != 0 {
		t.Errorf("%+v", got)
	}
	f := r.Since(t)
	r.Manage(t, "DELETE", "/repository/"+path+"/tag/other?override_protection=true", "").WantStatus(t, 204)
	r.WantLog(t, f, fmt.Sprintf(`delete_tag app %s other %.15s {"protection": "overridden"}`, path, digest(two)))
}

// TestLabelsOfIndex: a label counts if each image of the index has it, attestations aside.
func TestLabelsOfIndex(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "app/multi"
	r.Put(t, path, "first", r.Simple(t, path, 0, nil))
	r.allow(t, true, true)
	image := func(n int, labels map[string]any) oci.Digest {
		m := r.labelled(t, path, labels, object{"annotations": map[string]string{"n": fmt.Sprint(n)}})
		return r.Put(t, path, digest(m).String(), m)
	}
	short := image(1, map[string]any{"quay.expires-after": "2d", "quay.immutable": "true"})
	long := image(2, map[string]any{"quay.expires-after": "3d"})
	none := image(3, nil)
	for i, test := range []struct {
		children  []oci.Digest
		want      time.Duration
		immutable bool
	}{
		{[]oci.Digest{short, long}, 72 * time.Hour, false},
		{[]oci.Digest{short, long, none}, 0, false},
		{[]oci.Digest{short}, 0, true},
	} {
		tag := fmt.Sprintf("i%d", i)
		if w := r.pushed(t, path, tag, index(t, test.children...)); w != "" {
			t.Errorf("%s warns: %s", tag, w)
		}
		r.expiresIn(t, path, tag, test.want)
		if got := r.described(t, path, tag).Immutable; got != test.immutable {
			t.Errorf("%s is immutable: %t", tag, got)
		}
	}
	attested := encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{
		descriptor(oci.MediaTypeImageManifest, long, 1),
		object{"mediaType": oci.MediaTypeImageManifest, "digest": none, "size": 1, "platform": object{"os": "unknown", "architecture": "unknown"}},
	}})
	r.pushed(t, path, "attested", attested)
	r.expiresIn(t, path, "attested", 72*time.Hour)
	r.pushed(t, path, "annotated", r.Simple(t, path, 9, object{"annotations": map[string]string{"io.purser.expires-after": "5h"}}))
	r.expiresIn(t, path, "annotated", 5*time.Hour)
}

// countingReader counts what is read of the store, and may fail.
type countingReader struct {
	catalog.Reader
	opened atomic.Int64
	broken atomic.Bool
}

func (c *countingReader) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	c.opened.Add(1)
	if c.broken.Load() {
		return nil, io.ErrUnexpectedEOF
	}
	return c.Reader.Open(ctx, key, off, length)
}

// TestLabelsThatCannotBeRead: a push whose labels can't be read, or are too large, succeeds, gives
// no date, and says so. A push costs one read, and none where no labels count.
func TestLabelsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	store := new(countingReader)
	r := setup(t, func(o *servertest.Options) {
		store.Reader = o.Store
		o.Catalog = o.NewCatalog(func(c *catalog.Options) { c.Store = store })
	})
	const path = "app/web"
	days := r.labelled(t, path, map[string]any{"quay.expires-after": "2d"}, nil)
	r.pushed(t, path, "off", days)
	if n := store.opened.Load(); n != 0 {
		t.Errorf("%d reads where no labels count", n)
	}
	r.allow(t, true, true)
	r.pushed(t, path, "on", days)
	r.expiresIn(t, path, "on", 48*time.Hour)
	if n := store.opened.Load(); n != 1 {
		t.Errorf("%d reads for a push", n)
	}
	store.broken.Store(true)
	f := r.Since(t)
	if w := r.pushed(t, path, "on", days); !strings.Contains(w, "could not be read") {
		t.Errorf("the warning is %q", w)
	}
	r.expiresIn(t, path, "on", 0)
	if e := r.Entries(t, f); len(e) != 1 || !strings.Contains(fmt.Sprintf("%s", e[0].Detail), "labels_ignored") {
		t.Errorf("the log has %+v", e)
	}
	store.broken.Store(false)
	large := map[string]any{"quay.expires-after": "2d", "padding": strings.Repeat("x", 70<<10)}
	if w := r.pushed(t, path, "large", r.labelled(t, path, large, nil)); !strings.Contains(w, "bytes") {
		t.Errorf("the warning is %q", w)
	}
	r.expiresIn(t, path, "large", 0)
	numbers := map[string]any{"quay.expires-after": 2}
	if w := r.pushed(t, path, "number", r.labelled(t, path, numbers, nil)); !strings.Contains(w, "can't be read") {
		t.Errorf("the warning is %q", w)
	}
	r.expiresIn(t, path, "number", 0)
}

// TestLabelsFollowTheSettingInEachProcess: another process follows a change with its next push,
// even if it has read the setting before.
func TestLabelsFollowTheSettingInEachProcess(t *testing.T) {
	t.Parallel()
	r := setup(t)
	other := replica(t, r.DSN, r.Dir)
	const path = "app/web"
	days := r.labelled(t, path, map[string]any{"quay.expires-after": "2d"}, nil)
	for i, on := range []bool{true, false, true} {
		r.pushed(t, path, "seed", days)
		r.allow(t, on, false)
		tag := fmt.Sprintf("v%d", i)
		other.pushed(t, path, tag, days)
		r.expiresIn(t, path, tag, map[bool]time.Duration{true: 48 * time.Hour}[on])
	}
}
