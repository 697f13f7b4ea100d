package distribution_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestListTags tests "Listing Tags" of the specification.
func TestListTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a/b", 1, nil)
	tags := []string{"1.0", "1.0.1", "1.10", "1.2", "A", "B", "Z", "_x", "a", "b", "b-1", "b.1", "b_1", "latest", "z"}
	for _, i := range []int{7, 3, 0, 14, 1, 2, 4, 13, 12, 5, 6, 8, 9, 10, 11} {
		r.Put(t, "a/b", tags[i], payload)
	}
	list := func(tags []string) string {
		return encode(t, object{"name": "a/b", "tags": append([]string{}, tags...)})
	}
	const path = "/v2/a/b/tags/list"
	for range 2 {
		r.Do(t, "GET", path, "").Want(t, 200, "", "Content-Type", "application/json", "Link", "").Text(t, list(tags))
	}
	for query, want := range map[string][]string{
		"?n=3":             tags[:3],
		"?n=15":            tags,
		"?n=16":            tags,
		"?n=2147483647":    tags,
		"?n=":              tags,
		"?n=0":             nil,
		"?n=0&last=A":      nil,
		"?last=A":          tags[5:],
		"?last=AA":         tags[5:], // the tag needn't exist
		"?n=2&last=1.10":   tags[3:5],
		"?n=100&last=b.1":  tags[12:],
		"?last=z":          nil,
		"?n=2&last=~":      nil,
		"?last=":           tags,
		"?n=1&last=latest": tags[14:],
		"?ns=example.com":  tags,
	} {
		a := r.Do(t, "GET", path+query, "").Want(t, 200, "")
		a.Text(t, list(want))
		more := len(want) > 0 && want[len(want)-1] != "z"
		if next := a.Next(t); (next != "") != more {
			t.Errorf("%s: Link to %q", query, next)
		}
	}
	for _, n := range []string{"-1", "x", "1.5", "0x1", "+1", "99999999999999999999", "1%20", "%00"} {
		r.Do(t, "GET", path+"?n="+n, "").Want(t, 400, oci.Unsupported)
	}
	for n := 1; n <= 16; n++ {
		var got []string
		for next := fmt.Sprintf("%s?n=%d", path, n); next != ""; {
			a := r.Do(t, "GET", next, "").Want(t, 200, "")
			var page struct{ Tags []string }
			if err := json.Unmarshal(a.Content, &page); err != nil || len(page.Tags) > n || len(page.Tags) == 0 {
				t.Fatalf("page %s: %v", a.Content, err)
			}
			got, next = append(got, page.Tags...), a.Next(t)
		}
		if !slices.Equal(got, tags) {
			t.Errorf("pages of %d: %v", n, got)
		}
	}
}

// TestListNoTags: a client lists the tags of a repository without tags, and must get an empty
// list. For an unknown repository, it must get 404 NAME_UNKNOWN.
func TestListNoTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "blobs-only", "x")
	r.Do(t, "GET", "/v2/blobs-only/tags/list", "").Want(t, 200, "").Text(t, `{"name":"blobs-only","tags":[]}`)
	for _, query := range []string{"", "?n=0", "?n=1&last=x"} {
		r.Do(t, "GET", "/v2/a/tags/list"+query, "").Want(t, 404, oci.NameUnknown)
	}
}

// TestHostileQueries: clients send paths and query parameters with bytes that PostgreSQL can't
// store, such as NUL and invalid UTF-8. The registry must not answer with a server error.
func TestHostileQueries(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "a", "v1", r.Simple(t, "a", 1, nil))
	d := digest("x").String()
	for _, path := range []string{
		"/v2/a/tags/list?last=", "/v2/_catalog?last=", "/v2/a/referrers/" + d + "?artifactType=", "/v2/a/referrers/" + d + "?last=",
		"/v2/a/tags/list?n=", "/v2/a/manifests/", "/v2/a/blobs/", "/v2/a/blobs/uploads/", "/v2/a/tags/list?ns=",
	} {
		for _, v := range []string{"%00", "a%00b", "%FF", "%C3%28", "%ED%A0%80", "%27%3B", strings.Repeat("x", 5000)} {
			if a := r.Do(t, "GET", path+v, ""); a.StatusCode >= 500 {
				t.Errorf("GET %s%.20s: %d %s", path, v, a.StatusCode, a.Content)
			}
		}
	}
}

// TestCatalog lists repositories as tags are listed.
func TestCatalog(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "/v2/_catalog"
	r.Do(t, "GET", path, "").Want(t, 200, "", "Content-Type", "application/json", "Link", "").Text(t, `{"repositories":[]}`)
	names := []string{"a", "a-b", "a.b/c", "a/b", "a/b/c", "a0", "z"}
	for _, n := range []int{3, 0, 6, 1, 2, 5, 4} {
		r.Push(t, names[n], "x")
	}
	r.StartUpload(t, "uploads-only", "")
	for query, want := range map[string][]string{
		"": names, "?n=2": names[:2], "?n=0": {}, "?last=a/b": names[4:], "?n=1&last=a/b": names[4:5], "?n=100": names, "?last=zz": {},
	} {
		a := r.Do(t, "GET", path+query, "").Want(t, 200, "")
		a.Text(t, encode(t, object{"repositories": want}))
		if more := len(want) > 0 && want[len(want)-1] != "z"; (a.Next(t) != "") != more {
			t.Errorf("%s: Link %q", query, a.Header.Get("Link"))
		}
	}
	var got []string
	for next := path + "?n=3"; next != ""; {
		a := r.Do(t, "GET", next, "").Want(t, 200, "")
		var page struct{ Repositories []string }
		if err := json.Unmarshal(a.Content, &page); err != nil {
			t.Fatal(err)
		}
		got, next = append(got, page.Repositories...), a.Next(t)
	}
	if !slices.Equal(got, names) {
		t.Errorf("pages: %v", got)
	}
	for _, n := range []string{"-1", "x"} {
		r.Do(t, "GET", path+"?n="+n, "").Want(t, 400, oci.Unsupported)
	}
}

// TestReferrers tests "Listing Referrers" of the OCI Distribution Specification: the members of
// each listed descriptor, and the filter by artifactType.
func TestReferrers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := r.Put(t, "a", "v1", r.Simple(t, "a", 1, nil))
	path := "/v2/a/referrers/" + subject.String()
	empty := encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{}})
	for _, p := range []string{path, "/v2/unknown/repo/referrers/" + subject.String(), "/v2/a/referrers/" + digest512("none").String(), path + "?n=5"} {
		var got, want any
		a := r.Do(t, "GET", p, "").Want(t, 200, "", "Content-Type", oci.MediaTypeImageIndex, "Link", "", "OCI-Filters-Applied", "")
		if json.Unmarshal(a.Content, &got) != nil || json.Unmarshal([]byte(empty), &want) != nil || encode(t, got) != encode(t, want) {
			t.Errorf("%s: %s", p, a.Content)
		}
	}
	names := descriptor(oci.MediaTypeImageManifest, subject, 5)
	notes := map[string]string{"k": `<v> & "é"`}
	want := []object{}
	add := func(mediaType, artifactType, payload string, notes map[string]string) {
		r.Do(t, "PUT", "/v2/a/manifests/"+digest(payload).String(), payload).Want(t, 201, "", "OCI-Subject", subject.String())
		d := descriptor(mediaType, digest(payload), len(payload))
		if artifactType != "" {
			d["artifactType"] = artifactType
		}
		if notes != nil {
			d["annotations"] = notes
		}
		want = append(want, d)
	}
	config := digest("{}")
	add(oci.MediaTypeImageManifest, "application/x.sbom", image(t, config, nil, object{"subject": names, "artifactType": "application/x.sbom", "annotations": notes}), notes)
	add(oci.MediaTypeImageManifest, servertest.ConfigType, image(t, config, nil, object{"subject": names}), nil)
	ix := object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{}, "subject": names, "annotations": notes}
	add(oci.MediaTypeImageIndex, "", encode(t, ix), notes)
	ix["artifactType"] = "application/x.sbom"
	add(oci.MediaTypeImageIndex, "application/x.sbom", encode(t, ix), notes)
	r.Put(t, "b", "v1", r.Simple(t, "b", 1, object{"subject": names})) // another repository's

	check := func(query, filters string, want []object) {
		t.Helper()
		a := r.Do(t, "GET", path+query, "").Want(t, 200, "", "Content-Type", oci.MediaTypeImageIndex, "OCI-Filters-Applied", filters)
		var got struct{ Manifests []object }
		if err := json.Unmarshal(a.Content, &got); err != nil || encode(t, got.Manifests) != encode(t, want) {
			t.Errorf("%s: %s (%v), want %s", query, a.Content, err, encode(t, want))
		}
	}
	check("", "", want)
	check("?artifactType=application/x.sbom", "artifactType", []object{want[0], want[3]})
	check("?artifactType="+servertest.ConfigType, "artifactType", []object{want[1]})
	check("?artifactType=application/none", "artifactType", []object{})
	r.Do(t, "DELETE", "/v2/a/manifests/"+want[0]["digest"].(string), "").Want(t, 202, "")
	check("?artifactType=application/x.sbom", "artifactType", want[3:])
	r.Do(t, "DELETE", "/v2/a/manifests/"+subject.String(), "").Want(t, 202, "")
	check("", "", want[1:])
	for _, query := range []string{"?n=-1", "?n=x", "?last=x", "?last=1.5"} {
		r.Do(t, "GET", path+query, "").Want(t, 400, oci.Unsupported)
	}
}

// TestReferrerPages: a client lists referrers that don't fit in one page, because they are too
// many, or because the list has more than the 4 MiB that clients read of a manifest. The Link
// header of each page must point to the next page and keep the filter by artifactType. Every
// second referrer has annotations full of quotes. JSON escapes a quote as two bytes, and the
// size of a page must include the escapes.
func TestReferrerPages(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := digest("absent")
	names := descriptor(oci.MediaTypeImageManifest, subject, 5)
	var want, wantOdd []string
	count := testscale.Pick(75, 120)
	for i := range count {
		long := strings.Repeat("<", 60<<10)
		if i%2 == 1 {
			long = strings.Repeat(`"`, 30<<10)
		}
		m := object{"subject": names, "artifactType": fmt.Sprintf("application/x.%d", i%2),
			"annotations": map[string]string{"n": fmt.Sprint(i), "long": long}}
		d := r.Put(t, "a", fmt.Sprintf("t%d", i), r.Simple(t, "a", i, m))
		want = append(want, d.String())
		if i%2 == 1 {
			wantOdd = append(wantOdd, d.String())
		}
	}
	path := "/v2/a/referrers/" + subject.String()
	queries := map[string][]string{"": want, "?n=20&artifactType=application/x.1": wantOdd}
	if testscale.All { // each reads 7 MB, which takes seconds with the race detector
		queries["?n=7"], queries["?n=50"], queries["?n=1000"], queries["?artifactType=application/x.1"] = want, want, want, wantOdd
	}
	for query, want := range queries {
		list, pages := r.referrers(t, path+query)
		var got []string
		for _, m := range list {
			got = append(got, m.Digest)
			if len(m.Annotations["long"]) < 30<<10 {
				t.Fatalf("%s: %s has lost its annotations", query, m.Digest)
			}
		}
		if !slices.Equal(got, want) || pages < 2 {
			t.Errorf("%s: %d of %d referrers in %d pages", query, len(got), len(want), pages)
		}
	}
	if list, pages := r.referrers(t, path+"?n=1"); len(list) != count || pages != count {
		t.Errorf("one at a time: %d referrers in %d pages, want %d", len(list), pages, count)
	}
}

type listedReferrer struct {
	Digest      string
	Annotations map[string]string
}

// referrers reads a list of referrers, from the page with the URL `next` to the last page, by
// the Link headers. It returns all entries and the number of pages, and checks that each page
// has at most the 4 MiB that clients read.
func (r *registry) referrers(t *testing.T, next string) (list []listedReferrer, pages int) {
	t.Helper()
	for filtered := strings.Contains(next, "artifactType"); next != ""; pages++ {
		a := r.Do(t, "GET", next, "").Want(t, 200, "", "Content-Type", oci.MediaTypeImageIndex)
		if filtered && a.Header.Get("OCI-Filters-Applied") != "artifactType" {
			t.Errorf("%s: no OCI-Filters-Applied", next)
		}
		if len(a.Content) > oci.MaxManifestSize {
			t.Errorf("%s: a page of %d bytes", next, len(a.Content))
		}
		var page struct{ Manifests []listedReferrer }
		if err := json.Unmarshal(a.Content, &page); err != nil || len(page.Manifests) == 0 {
			t.Fatalf("%s: %.100s, %v", next, a.Content, err)
		}
		list, next = append(list, page.Manifests...), a.Next(t)
	}
	return list, pages
}

// TestReferrerOfLongAnnotations: some referrers have annotations of 64 KiB to 3.5 MB. The list
// of referrers must have these referrers without their annotations, so that there is room in
// the page for other referrers.
func TestReferrerOfLongAnnotations(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := digest("absent")
	names := descriptor(oci.MediaTypeImageManifest, subject, 5)
	lengths := []int{10, 1 << 20, 64 << 10, 3_500_000, 30 << 10}
	for i, n := range lengths {
		m := object{"subject": names, "annotations": map[string]string{"n": fmt.Sprint(i), "<": strings.Repeat("<", n)}}
		var b bytes.Buffer // json.Marshal's escapes would exceed the size limit of manifests
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		config := r.Push(t, "a", "{}")
		m["schemaVersion"], m["mediaType"], m["layers"] = 2, oci.MediaTypeImageManifest, []any{}
		m["config"] = descriptor(servertest.ConfigType, config, 2)
		if err := e.Encode(m); err != nil {
			t.Fatal(err)
		}
		r.Put(t, "a", fmt.Sprintf("t%d", i), b.String())
	}
	list, _ := r.referrers(t, "/v2/a/referrers/"+subject.String())
	if len(list) != len(lengths) {
		t.Fatalf("%d of %d referrers", len(list), len(lengths))
	}
	for i, m := range list {
		if kept := lengths[i] < 64<<10; kept != (m.Annotations["n"] == fmt.Sprint(i)) || kept != (len(m.Annotations["<"]) == lengths[i]) {
			t.Errorf("of %d bytes %d are listed", lengths[i], len(m.Annotations["<"]))
		}
	}
}
