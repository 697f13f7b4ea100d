package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// mixedTags are tags of upper and lower case, digits and signs, whose order differs between byte order
// and any other, and more than a page of clients.
func mixedTags() (tags []string) {
	for i := range 12 {
		for _, pattern := range []string{"v%d", "V%d", "_%d", "%d", "rc-%d", "RC-%d", "rc_%d", "rc.%d", "a%d", "A%d", "aB%d", "Ab%d"} {
			tags = append(tags, fmt.Sprintf(pattern, i))
		}
	}
	slices.Sort(tags) // by bytes
	return tags
}

// TestMixedTagsAreListedOnce: clients list tags of mixed case, in pages of several sizes and without
// pages. Each tag comes once, in byte order, which docs/clients.md promises.
func TestMixedTagsAreListedOnce(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	const repo = "mixed/app"
	tags := mixedTags()
	d, err := r.API().pushImage(t.Context(), repo, tags[0], randomBytes(64))
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := r.API().manifest(t.Context(), repo, d.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags[1:] {
		if _, err := r.API().putManifest(t.Context(), repo, tag, "application/vnd.oci.image.manifest.v1+json", image); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, got []string) {
		t.Helper()
		if !slices.Equal(got, tags) {
			t.Errorf("%s lists %d tags, want %d in byte order: %q", what, len(got), len(tags), got)
		}
	}
	check("crane", lines(toolClient(t, "crane").Run("ls", r.host+"/"+repo)))
	check("regctl", lines(regctl(t, r).Run("tag", "ls", r.host+"/"+repo)))
	var listed struct{ Tags []string }
	if err := json.Unmarshal([]byte(skopeo(t).Run("list-tags", "--tls-verify=false", "docker://"+r.host+"/"+repo)), &listed); err != nil {
		t.Error(err)
	}
	check("skopeo", listed.Tags)
	for _, size := range []int{1, 7, 100, 1000} {
		o := orasRepository(t, r, repo)
		o.TagListPageSize = size
		var got []string
		if err := o.Tags(t.Context(), "", func(page []string) error { got = append(got, page...); return nil }); err != nil {
			t.Error(err)
		}
		check(fmt.Sprintf("oras-go in pages of %d", size), got)
		in, err := name.NewRepository(r.host+"/"+repo, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		got, err = remote.List(in, remote.WithPageSize(size), remote.WithContext(t.Context()))
		if err != nil {
			t.Error(err)
		}
		check(fmt.Sprintf("go-containerregistry in pages of %d", size), got)
	}
	// A client may begin anywhere, also after a tag that doesn't exist.
	for _, last := range []string{"RC-5", "RC-55", "_", "a"} {
		o := orasRepository(t, r, repo)
		var got []string
		if err := o.Tags(t.Context(), last, func(page []string) error { got = append(got, page...); return nil }); err != nil {
			t.Error(err)
		}
		at := slices.IndexFunc(tags, func(tag string) bool { return strings.Compare(tag, last) > 0 })
		if !slices.Equal(got, tags[at:]) {
			t.Errorf("after %s: %d tags, want %d", last, len(got), len(tags)-at)
		}
	}
}
