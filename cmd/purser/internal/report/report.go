// Package report finds out which images are deployed: on a host with Docker or containerd, and,
// in its package kube, in a Kubernetes cluster. The commands that report them to a registry are
// in the package client.
//
// A report replaces the reporter's list, so what a source leaves out may be deleted. Therefore a
// source returns either everything that it found, or an error if a part of it couldn't be read.
// The registry may refuse to tell the digests of single images. Then the report holds the others and
// names these, and the registry keeps the digests that it held under these names before.
package report

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/purser-registry/purser/internal/oci"
)

// Image is an image in use, by its digest, by a tag, or by its id on the machine that runs it.
type Image struct {
	Host       string // of the registry, with the port if the name has one
	Repository string
	Tag        string     // "" if the image has a digest or an id
	Digest     oci.Digest // zero if the image has only a tag or an id
	// ID is the digest of the image's configuration, by which an engine may know an image whose
	// digest it doesn't know. Some engines use the digest of the manifest here too.
	ID oci.Digest
	// At is when the tag was resolved to a digest by whoever deployed it. Zero: now.
	At time.Time
	// Since says that the tag was perhaps resolved again at any time after At.
	Since bool
	// Doubt says that another image of the list says what runs, so that the registry may lack this
	// one.
	Doubt  bool
	UsedBy string // such as pod shop/web-7d9
}

// Deployed is what a source runs.
type Deployed struct {
	Images  []Image
	Cluster string   // the UID of a cluster, "" if it isn't known
	Unread  []string // what wasn't read and perhaps runs something, for people
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

// hexID matches an image's id without its algorithm, as CRI-O writes it.
var hexID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// scheme matches what kubelets and engines write before an image's id, such as docker-pullable://.
var scheme = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://`)

// ParseRunning reads what a node says about the image that a container runs: the member imageID of
// a container's status in Kubernetes. That is a name with a digest, which may be any of the names
// that the image has on the node, or else an id without host and repository: sha256:HEX, or HEX
// alone. It returns false if the text says neither.
func ParseRunning(text string) (Image, bool) {
	text = scheme.ReplaceAllString(text, "")
	if hexID.MatchString(text) {
		text = "sha256:" + text
	}
	if id, err := oci.ParseDigest(text); err == nil {
		return Image{ID: id}, true
	}
	i, err := Parse(text)
	return i, err == nil && i.Tag == ""
}

// String returns the image's name.
func (i Image) String() string {
	switch {
	case !i.Digest.IsZero():
		return i.Host + "/" + i.Repository + "@" + i.Digest.String()
	case !i.ID.IsZero():
		return i.Host + "/" + i.Repository + " with the id " + i.ID.String()
	}
	return i.Host + "/" + i.Repository + ":" + i.Tag
}

// Of returns the images whose host is one of `hosts`.
func Of(images []Image, hosts []string) []Image {
	return slices.DeleteFunc(slices.Clone(images), func(i Image) bool { return !slices.Contains(hosts, i.Host) })
}

// Others counts the images of other hosts, each name once.
func Others(images []Image, hosts []string) map[string]int {
	counts, seen := map[string]int{}, map[string]bool{}
	for _, i := range images {
		if name := i.String(); !slices.Contains(hosts, i.Host) && !seen[name] {
			seen[name] = true
			counts[i.Host]++
		}
	}
	return counts
}

// In returns the images of the registry's namespace, and those without a repository. It returns all
// if the namespace is "".
func In(images []Image, namespace string) []Image {
	return slices.DeleteFunc(slices.Clone(images), func(i Image) bool {
		return namespace != "" && i.Repository != "" && !strings.HasPrefix(i.Repository, namespace+"/")
	})
}

// State is a digest that a tag has, or had until a time.
type State struct {
	Digest oci.Digest
	End    time.Time // zero: the tag has it
}

// Registry says what the registry knows by the names of images. Both functions return nothing if
// the registry doesn't have such an image, or no longer knows; and a *Refusal if it doesn't tell.
// Other errors say that the registry can't be reached at all.
type Registry interface {
	// Tag returns the states of a tag, the newest first: at least those that ended after `since`.
	Tag(repository, tag string, since time.Time) ([]State, error)
	// Image returns the manifests that an image's id stands for.
	Image(repository string, id oci.Digest) ([]oci.Digest, error)
}

// Refusal is why a registry doesn't tell what an image's name stands for.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

// Item is a digest of a report.
type Item struct {
	Digest oci.Digest `json:"digest"`
	UsedBy string     `json:"used_by,omitempty"` // for people
	// Names are those of the images that were resolved to the digest.
	Names []string `json:"names,omitempty"`
}

// Unresolved is an image of which the registry told no digest, or not all.
type Unresolved struct {
	Name   string `json:"name"`
	UsedBy string `json:"used_by,omitempty"`
	Reason string `json:"reason"`
}

// Found is what a report sends.
type Found struct {
	Items      []Item       // each digest once, with who uses it
	Unresolved []Unresolved // each name once
}

// absent is the reason why a tag is unresolved that the registry doesn't have.
const absent = "no such tag in the registry, or no right to read it"

// Resolve finds the digests of images. An image that can't be resolved doesn't stop it. It returns
// an error if the registry can't be reached.
func Resolve(images []Image, r Registry) (f Found, err error) {
	c := collection{resolver: newResolver(r, images), byDigest: map[oci.Digest]*users{}}
	told := map[string]bool{}
	for _, i := range images {
		digests, err := c.resolver.digests(i)
		refused, ok := errors.AsType[*Refusal](err)
		if err != nil && !ok {
			return Found{}, fmt.Errorf("resolving %s: %w", i, err)
		}
		if err == nil && len(digests) == 0 && !i.Doubt {
			refused = &Refusal{absent}
		}
		if refused != nil && !told[i.String()] {
			told[i.String()] = true
			f.Unresolved = append(f.Unresolved, Unresolved{i.String(), i.UsedBy, refused.Reason})
		}
		for _, d := range digests {
			c.add(d, i)
		}
	}
	f.Items = c.items()
	return f, nil
}

// collection has the digests of a report, in the order in which they were added.
type collection struct {
	resolver *resolver
	order    []oci.Digest
	byDigest map[oci.Digest]*users
}

// users are those who use a digest, and the names by which they found it.
type users struct {
	first  string
	others map[string]bool
	names  map[string]bool
}

func (c *collection) add(d oci.Digest, i Image) {
	u := c.byDigest[d]
	if u == nil {
		u = &users{first: i.UsedBy, others: map[string]bool{}, names: map[string]bool{}}
		c.byDigest[d] = u
		c.order = append(c.order, d)
	}
	if i.UsedBy != u.first {
		u.others[i.UsedBy] = true
	}
	if i.Digest.IsZero() {
		u.names[i.String()] = true
	}
}

// maxNames is how many names an item may have; more are sent as anyName.
const (
	maxNames = 100
	anyName  = "*"
)

func (c *collection) items() []Item {
	items := make([]Item, 0, len(c.order))
	for _, d := range c.order {
		item := Item{Digest: d, UsedBy: c.byDigest[d].first}
		if n := len(c.byDigest[d].others); n > 0 {
			item.UsedBy += fmt.Sprintf(" and %d more", n)
		}
		if item.Names = slices.Sorted(maps.Keys(c.byDigest[d].names)); len(item.Names) > maxNames {
			item.Names = []string{anyName}
		}
		items = append(items, item)
	}
	return items
}

// errIncomplete begins the errors about sources that can't be read completely.
var errIncomplete = errors.New("nothing is reported, since a list that isn't complete would end the holds of what it lacks")

// Incomplete says of an error that a source couldn't be read completely.
func Incomplete(err error) error { return fmt.Errorf("%w: %w", err, errIncomplete) }
