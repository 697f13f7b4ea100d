package ui

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/format"

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
	return p.ArtifactType == "" || format.Artifacts[p.ArtifactType] == "image"
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

// readyLine is what somebody copies so that a client logs in as a robot.
type readyLine struct{ Name, Text, Hint string }

// noSecret stands in ready lines for a secret, which is known only while it is new.
const noSecret = "PASTE-THE-SECRET-HERE"

// plainWord are words that a shell takes as they are.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9.:/_-]+$`)

// shellWord returns a word as a shell takes it.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// yamlText returns a text as YAML takes it.
func yamlText(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// login returns a command that logs in with the secret of its standard input, which the given command
// writes.
func login(writes, client, host, robot string) string {
	return writes + " | " + client + " " + shellWord(host) + " --username " + shellWord(robot) + " --password-stdin"
}

// readyLines returns the lines for clients that log in as a robot, with its secret if it was just made.
// Pipelines of issuers that the robot has rules for log in with their own tokens. `secret` is "" if it
// isn't known.
func readyLines(a registryAddress, robot api.RobotItem, secret string, rules api.FederationRules) []readyLine {
	if secret == "" {
		secret = noSecret
	}
	name, image := robot.Name(), a.Host+"/"+robot.Namespace+"/REPOSITORY:TAG"
	echo := "echo " + shellWord(secret)
	lines := []readyLine{
		{"docker", login(echo, "docker login", a.Host, name), ""},
		{"podman, skopeo", login(echo, "podman login"+a.whenPlain(" --tls-verify=false"), a.Host, name), "With skopeo login instead of podman login for skopeo."},
		{"containerd (ctr)", "ctr images pull" + a.whenPlain(" --plain-http") + " --user " + shellWord(name+":"+secret) + " " + shellWord(image), ""},
		{"containerd (nerdctl)", login(echo, "nerdctl"+a.whenPlain(" --insecure-registry")+" login", a.Host, name), ""},
		{"Kubernetes", "kubectl create secret docker-registry purser --docker-server=" + shellWord(a.Host) + " \\\n" +
			"    --docker-username=" + shellWord(name) + " --docker-password=" + shellWord(secret) + "\n" +
			`kubectl patch serviceaccount default -p '{"imagePullSecrets": [{"name": "purser"}]}'`, "Pods of this service account pull with it. It belongs to one namespace of the cluster."},
	}
	if a.Plain {
		lines = append(lines, readyLine{"containerd's hosts.toml", "server = \"http://" + a.Host + "\"\n\n[host.\"http://" + a.Host + "\"]\n  capabilities = [\"pull\", \"resolve\"]",
			"Over http, each node of a cluster with containerd needs this as /etc/containerd/certs.d/" + a.Host + "/hosts.toml."})
	}
	return append(lines,
		readyLine{"helm", login(echo, "helm registry login"+a.whenPlain(" --plain-http"), a.Host, name), "Charts are then at oci://" + a.Host + "/" + robot.Namespace + "/CHART."},
		githubLine(a, name, rules), gitlabLine(a, name, rules))
}

// githubLine returns a step of GitHub Actions.
func githubLine(a registryAddress, robot string, rules api.FederationRules) readyLine {
	const issuer = "https://token.actions.githubusercontent.com"
	i := slices.IndexFunc(rules, func(r api.FederationRule) bool { return r.Issuer == issuer || strings.HasPrefix(r.Issuer, issuer+"/") })
	if i < 0 {
		return readyLine{"GitHub Actions", "- uses: docker/login-action@v3\n  with:\n    registry: " + yamlText(a.Host) + "\n    username: " + yamlText(robot) + "\n    password: ${{ secrets.PURSER_SECRET }}",
			"Store the robot's secret as the repository's secret PURSER_SECRET. With a rule for GitHub's tokens, below, there is no secret to store."}
	}
	writes := "curl -sH \"Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN\" \\\n        \"$ACTIONS_ID_TOKEN_REQUEST_URL&audience=" + url.QueryEscape(rules[i].Audience) + "\" | jq -r .value"
	return readyLine{"GitHub Actions", "permissions:\n  contents: read\n  id-token: write\nsteps:\n  - run: |\n      " + login(writes, "docker login", a.Host, robot),
		"The job's own token logs in, by a rule below. No secret is needed."}
}

// gitlabLine returns a job of GitLab CI.
func gitlabLine(a registryAddress, robot string, rules api.FederationRules) readyLine {
	i := slices.IndexFunc(rules, func(r api.FederationRule) bool {
		return r.Issuer == "https://gitlab.com" || strings.HasPrefix(r.Subject, "project_path:")
	})
	service := "    - docker:dind\n"
	if a.Plain {
		service = "    - name: docker:dind\n      command: [" + yamlText("--insecure-registry="+a.Host) + "]\n"
	}
	job := "push:\n  image: docker\n  services:\n" + service
	if i < 0 {
		return readyLine{"GitLab CI", job + "  script:\n    - " + login(`echo "$PURSER_SECRET"`, "docker login", a.Host, robot),
			"Store the robot's secret as the masked CI/CD variable PURSER_SECRET. With a rule for GitLab's tokens, below, there is no secret to store."}
	}
	return readyLine{"GitLab CI", job + "  id_tokens:\n    PURSER_TOKEN:\n      aud: " + yamlText(rules[i].Audience) + "\n  script:\n    - " + login(`echo "$PURSER_TOKEN"`, "docker login", a.Host, robot),
		"The job's own token logs in, by a rule below. No secret is needed."}
}
