// Package report finds out which images are deployed: on a host with Docker or containerd, and,
// in its package kube, in a Kubernetes cluster. The commands that report them to a registry are
// in the package client.
//
// A report replaces the reporter's list, so what a source leaves out may be deleted. Therefore a
// source returns either everything that it found, or an error if a part of it couldn't be read.
package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/purser-registry/purser/internal/oci"
)

// Image is an image in use, by digest or by tag.
type Image struct {
	Host       string // of the registry, with the port if the name has one
	Repository string
	Tag        string     // "" if the image has a digest
	Digest     oci.Digest // zero if the image has only a tag
	// At is when the tag was resolved to a digest by whoever deployed it. Zero: now.
	At     time.Time
	UsedBy string // such as pod shop/web-7d9
}

// Parse reads an image's name as in a manifest of Kubernetes or in an answer of an engine:
// HOST/REPOSITORY, with :TAG or @DIGEST or both. Without a host, the image is Docker Hub's;
// without tag and digest, the tag is latest. A digest wins over a tag, as it does when engines
// pull. The scheme docker-pullable://, which older kubelets write, is ignored.
func Parse(name string) (Image, error) {
	if strings.HasPrefix(name, "sha256:") || strings.HasPrefix(name, "sha512:") {
		return Image{}, fmt.Errorf("the image %.300q is an id, or a digest that isn't whole", name)
	}
	named, err := reference.ParseNormalizedNamed(strings.TrimPrefix(name, "docker-pullable://"))
	if err != nil {
		return Image{}, fmt.Errorf("the image %.300q: %w", name, err)
	}
	i := Image{Host: reference.Domain(named), Repository: reference.Path(named)}
	if d, ok := named.(reference.Digested); ok {
		if i.Digest, err = oci.ParseDigest(d.Digest().String()); err != nil {
			return Image{}, fmt.Errorf("the image %.300q: %w", name, err)
		}
		return i, nil
	}
	i.Tag = "latest"
	if t, ok := named.(reference.Tagged); ok {
		i.Tag = t.Tag()
	}
	return i, nil
}

// CheckHost returns an error unless `host` can be the host of an image's name.
func CheckHost(host string) error {
	if i, err := Parse(host + "/a"); err != nil || i.Host != host {
		return errors.New("it is no host as images name registries, like registry.example.com or 10.0.0.7:5000")
	}
	return nil
}

// String returns the image's name.
func (i Image) String() string {
	if i.Tag == "" {
		return i.Host + "/" + i.Repository + "@" + i.Digest.String()
	}
	return i.Host + "/" + i.Repository + ":" + i.Tag
}

// Of returns the images whose host is one of `hosts`.
func Of(images []Image, hosts []string) []Image {
	return slices.DeleteFunc(slices.Clone(images), func(i Image) bool { return !slices.Contains(hosts, i.Host) })
}

// Resolve finds the digests that a tag had at a time and has now, which may be the same. The
// zero time is now. It returns none if the repository never had such a tag, or no longer knows.
type Resolve func(repository, tag string, at time.Time) ([]oci.Digest, error)

// Item is a digest of a report.
type Item struct {
	Digest oci.Digest `json:"digest"`
	UsedBy string     `json:"used_by,omitempty"` // for people
}

// Items returns what a report sends: each digest once, with who uses it. Images with a tag alone
// are resolved first; those whose tag doesn't exist are returned in `unknown`.
func Items(images []Image, resolve Resolve) (items []Item, unknown []Image, err error) {
	type user struct{ first, others int } // first is an index of items
	users := map[oci.Digest]*user{}
	type tag struct {
		repository, tag string
		at              time.Time
	}
	resolved := map[tag][]oci.Digest{}
	for _, i := range images {
		digests := []oci.Digest{i.Digest}
		if i.Digest.IsZero() {
			key := tag{i.Repository, i.Tag, i.At}
			known := false
			if digests, known = resolved[key]; !known {
				if digests, err = resolve(i.Repository, i.Tag, i.At); err != nil {
					return nil, nil, fmt.Errorf("resolving %s: %w", i, err)
				}
				resolved[key] = digests
			}
			if len(digests) == 0 {
				unknown = append(unknown, i)
			}
		}
		for _, d := range digests {
			if u := users[d]; u != nil {
				u.others++
				continue
			}
			users[d] = &user{first: len(items)}
			items = append(items, Item{d, i.UsedBy})
		}
	}
	for _, u := range users {
		if u.others > 0 {
			items[u.first].UsedBy += fmt.Sprintf(" and %d more", u.others)
		}
	}
	return items, unknown, nil
}

// errIncomplete begins the errors about sources that can't be read completely.
var errIncomplete = errors.New("nothing is reported, since a list that isn't complete would end the holds of what it lacks")

// Incomplete says of an error that a source couldn't be read completely.
func Incomplete(err error) error { return fmt.Errorf("%w: %w", err, errIncomplete) }
