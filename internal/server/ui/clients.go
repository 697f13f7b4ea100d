package ui

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// registryAddress is how clients of the registry reach it, for the commands that pages show.
type registryAddress struct {
	Host  string // with the port, if it isn't the scheme's default
	Plain bool   // over http, which most clients do only when told to
}

// registryAddress returns the address of the external URL, else that of the browser's request.
func (q *request) registryAddress() registryAddress {
	scheme, host, _ := strings.Cut(q.ui.server.PublicBase(q.Context()), "://")
	return registryAddress{host, scheme == "http"}
}

// URL returns the registry's address as commands of Purser take it.
func (a registryAddress) URL() string {
	if a.Plain {
		return "http://" + a.Host
	}
	return "https://" + a.Host
}

// Push returns the commands by which Docker makes a repository with its first push, on a machine
// where nothing was pulled yet.
func (a registryAddress) Push(repository string) string {
	ref := a.Host + "/" + repository + ":latest"
	return "docker pull alpine:latest\ndocker tag alpine:latest " + ref + "\ndocker push " + ref
}

// whenPlain returns a flag that clients need for http, "" over https.
func (a registryAddress) whenPlain(flag string) string {
	if a.Plain {
		return flag
	}
	return ""
}

// client is a command by which a client pulls.
type client struct{ Name, Command string }

// pullable is a manifest that the commands of a page pull.
type pullable struct {
	Repository string
	Tag        string // "": by the digest
	Digest     oci.Digest
	// ArtifactType is as the management API gives it: that of an image is "" or the media type of
	// its configuration.
	ArtifactType string
	// Attached says that the manifest only looks like an image: it is what cosign or BuildKit attach
	// to one.
	Attached bool
	// Manifest is the manifest's JSON; if it is "", clients asks for it where it matters.
	Manifest string
}

// likeImage says that the manifest's type is that of images.
func (p pullable) likeImage() bool {
	return p.ArtifactType == "" || artifacts[p.ArtifactType] == "image"
}

const chartType = "application/vnd.cncf.helm.config.v1+json"

// clients returns the commands that pull a manifest, by those clients that can use what it is.
func (q *request) clients(p pullable) []client {
	a := q.registryAddress()
	name := a.Host + "/" + p.Repository
	ref := name + "@" + p.Digest.String()
	if p.Tag != "" {
		ref = name + ":" + p.Tag
	}
	crane := "crane pull" + a.whenPlain(" --insecure")
	regctl := client{"regctl", "regctl" + a.whenPlain(" --host reg="+a.Host+",tls=disabled") + " image export " + ref + " image.tar"}
	whole := []client{
		{"oras (layout)", "oras copy" + a.whenPlain(" --from-plain-http") + " " + ref + " --to-oci-layout image:latest"},
		{"crane", crane + " --format oci " + ref + " image"}, regctl,
	}
	switch {
	case p.ArtifactType == chartType:
		return append([]client{{"helm", "helm pull" + a.whenPlain(" --plain-http") + " oci://" + name + chartVersion(p)}}, whole...)
	case p.Attached:
		return whole
	case !p.likeImage():
		if !q.hasFiles(p) {
			return whole
		}
		return append([]client{{"oras", "oras pull" + a.whenPlain(" --plain-http") + " " + ref}}, whole...)
	}
	return []client{
		{"docker", "docker pull " + ref},
		{"podman", "podman pull" + a.whenPlain(" --tls-verify=false") + " " + ref},
		{"crane", crane + " " + ref + " image.tar"},
		{"skopeo", "skopeo copy" + a.whenPlain(" --src-tls-verify=false") + " docker://" + ref + " oci:image"},
		regctl,
	}
}

// hasFiles says whether "oras pull" pulls the whole artifact: it writes each layer into the file that the
// layer's annotation names, and leaves out layers without a name, as if they weren't there.
func (q *request) hasFiles(p pullable) bool {
	if p.Manifest == "" {
		found, err := run(q, api.GetManifest, api.ManifestItem{InRepository: repositoryOf(p.Repository), Digest: p.Digest})
		if err != nil {
			return false // it may be gone by now; the other commands serve for any artifact
		}
		p.Manifest = found.ManifestData
	}
	var manifest v1.Manifest
	_ = json.Unmarshal([]byte(p.Manifest), &manifest) //nolint:errcheck // the registry has parsed it; a member of another type leaves the layers
	for _, l := range manifest.Layers {
		if l.Annotations["org.opencontainers.image.title"] == "" {
			return false
		}
	}
	return len(manifest.Layers) > 0
}

// chartTag are the tags of charts whose versions Helm knows from the tag. Helm writes "_" in a tag
// for the "+" of a version.
var chartTag = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})(\.(0|[1-9][0-9]{0,17})){2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(_[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// chartVersion returns the end of a command of Helm that says which chart of a repository it is:
// by its version, or by its digest if the tag is no version, since Helm then takes the tag for a
// range of versions.
func chartVersion(p pullable) string {
	if chartTag.MatchString(p.Tag) {
		return " --version " + strings.ReplaceAll(p.Tag, "_", "+")
	}
	return "@" + p.Digest.String()
}

// attachedTagName says whether a tag has the name of something that a client attached to an image:
// cosign's sha256-….sig, .att and .sbom, or a list of referrers for registries that make none.
func attachedTagName(tag string) bool {
	_, _, ok := oci.CutDigest(tag)
	return ok
}

// pullOf returns what the commands pull that a tag points to.
func pullOf(repository string, t api.ListedTag) pullable {
	return pullable{Repository: repository, Tag: t.Name, Digest: t.ManifestDigest, ArtifactType: t.ArtifactType, Attached: attachedTagName(t.Name)}
}

// exampleOf returns the commands that pull one of the tags of a page: the first that isn't attached
// to an image. If signatures fill the page, and it shows all tags, it asks for those beside them.
func (q *request) exampleOf(repository string, tags []api.ListedTag, all bool) ([]client, error) {
	pulled := func(t api.ListedTag) bool { return !attachedTagName(t.Name) }
	if i := slices.IndexFunc(tags, pulled); i >= 0 {
		return q.clients(pullOf(repository, tags[i])), nil
	}
	if !all || len(tags) == 0 {
		return nil, nil
	}
	// The names of attached tags are beside each other in the order of names.
	var newest *api.ListedTag
	for _, sort := range []string{"name", "-name"} {
		list, err := run(q, api.ListTags, api.TagQuery{InRepository: repositoryOf(repository), Sort: sort, Limit: 20})
		if err != nil {
			return nil, err
		}
		for _, t := range list.Tags {
			if pulled(t) && (newest == nil || t.PushedAt.After(newest.PushedAt)) {
				newest = &t
			}
		}
	}
	if newest == nil {
		return nil, nil
	}
	return q.clients(pullOf(repository, *newest)), nil
}

// pullOfManifest returns what the commands on a manifest's page pull. An image whose layers have another
// type than those of images is cosign's signature or BuildKit's attestation: both have the
// configuration of an image.
func pullOfManifest(repository string, m *api.DescribedManifest) pullable {
	p := pullable{Repository: repository, Digest: m.Digest, ArtifactType: m.ArtifactType, Manifest: m.ManifestData}
	p.Attached = p.likeImage() && slices.ContainsFunc(m.Layers, func(l api.Layer) bool {
		return l.MediaType != "" && !strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer.") && !strings.HasPrefix(l.MediaType, "application/vnd.docker.image.rootfs.")
	})
	return p
}
