package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// dockerWith starts a Docker with a container of each image; the images' names have digests. The
// containers were made by these names.
func (o *office) dockerWith(images ...string) {
	o.t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/containers/json" {
			list := make([]string, len(images))
			for i := range images {
				list[i] = fmt.Sprintf(`{"Id":"c%d","Names":["/web-%[1]d"],"Image":%q,"ImageID":"i%[1]d"}`, i, images[i])
			}
			fmt.Fprintf(w, "[%s]", strings.Join(list, ","))
			return
		}
		if strings.HasPrefix(r.URL.Path, "/containers/") {
			fmt.Fprint(w, `{}`)
			return
		}
		var i int
		if _, err := fmt.Sscanf(r.URL.Path, "/images/i%d/json", &i); err != nil {
			o.t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		fmt.Fprintf(w, `{"RepoDigests":[%q]}`, images[i])
	}))
	o.t.Cleanup(s.Close)
	o.environ = append(o.environ[:2:2], "DOCKER_HOST="+strings.Replace(s.URL, "http://", "tcp://", 1))
}

// TestReport: a host reports its containers, and a list is reported from standard input. What is
// reported can't be deleted; what the next report lacks can when its
// lease is over, or when somebody says so.
func TestReport(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	one, two := image(t, root, "v1", "one"), image(t, root, "v2", "two")

	o.dockerWith("r.example/acme/app@"+one, "docker.io/acme/alpine@"+two)
	host := []string{"report", "docker", "host-1", "--registry", "r.example", "--namespace", "acme", "--lease", "2h"}
	if text := o.ok("", append(host, "--dry-run")...); !strings.Contains(text, one+"  container web-0") || strings.Contains(text, two) {
		t.Errorf("a dry run prints\n%s", text)
	}
	if text := o.ok("", append(host, "--dry-run", "--also-known-as", "mirror.example,docker.io")...); !strings.Contains(text, two+"  container web-1") {
		t.Errorf("with a second name of the registry, a dry run prints\n%s", text)
	}
	o.fails("no reporter host-1", 3, "", "hold", "show", "host-1", "--namespace", "acme")
	if text := o.ok("", host...); !strings.Contains(text, "digests                 1\n") || !strings.Contains(text, "not in the registry     0") ||
		!strings.Contains(text, "of other hosts          1: docker.io 1\n") {
		t.Errorf("it prints\n%s", text)
	}
	if text := o.ok("", "hold", "show", "host-1", "--namespace", "acme"); !regexp.MustCompile(`container web-0 +- +`+one).MatchString(text) || !strings.Contains(text, "2h0m0s") {
		t.Errorf("the reporter is\n%s", text)
	}
	o.fails("held", 3, "", "tag", "delete", "acme/app:v1", "--yes")

	o.dockerWith("docker.io/library/alpine@" + two)
	o.fails("None of the 1 deployed images is of r.example", 3, "", host...)
	o.fails("held", 3, "", "tag", "delete", "acme/app:v1", "--yes")

	list := "acme/app:v2 job shop\n\nr.example/acme/app@" + one + "\tpod a b\n" + `{"digest":"` + two + `","used_by":"me"}`
	if text := o.ok(list, "report", "stdin", "host-1", "--namespace", "acme", "--kind", "nomad"); !strings.Contains(text, "digests                 2\n") {
		t.Errorf("it prints\n%s", text)
	}
	if text := o.ok("", "hold", "show", "host-1", "--namespace", "acme"); !regexp.MustCompile(`pod a b +- +`+one).MatchString(text) || !regexp.MustCompile(`job shop and 1 more +docker.io/acme/app:v2 +`+two).MatchString(text) {
		t.Errorf("the reporter is\n%s", text)
	}
	code, stdout, stderr := o.purser("acme/app:none\nacme/app:v2\n", "report", "stdin", "host-1", "--namespace", "acme")
	if code != 4 || !strings.Contains(stderr, "acme/app:none: no such tag") || !strings.Contains(stdout, "left out, held for now  1\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	o.fails("held", 3, "", "tag", "delete", "acme/app:v1", "--yes")
	root.Manage(t, "PUT", "/holds/host-1?namespace=acme", `{"remove":["`+one+`"]}`).WantStatus(t, 200)
	o.ok("", "tag", "delete", "acme/app:v1", "--yes")

	o.fails("line 2 of the list", 1, "acme/app:v2\nsha256:12\n", "report", "stdin", "host-1", "--namespace", "acme")
	o.fails("The list is empty", 3, "\n", "report", "stdin", "host-1", "--namespace", "acme")
	o.fails("--rollbacks", 2, "", "report", "kubernetes", "k", "--rollbacks", "-1")
	o.fails("--interval", 2, "", "report", "docker", "k", "--interval", "1ms")
	root.Manage(t, "PUT", "/holds/host-1?namespace=acme", `{"digests":[]}`).Refused(t, 409, "invalid_request", "--allow-empty")
	if text := o.ok("", "report", "stdin", "host-1", "--namespace", "acme", "--allow-empty"); !strings.Contains(text, "left out, held for now  1\n") {
		t.Errorf("it prints\n%s", text)
	}
	o.ok("", "hold", "delete", "host-1", "--namespace", "acme", "--yes")
	o.ok("", "tag", "delete", "acme/app:v2", "--yes")
}

// image pushes an image to acme/app and returns its digest.
func image(t *testing.T, r *servertest.Registry, tag, content string) string {
	t.Helper()
	return r.Put(t, "acme/app", tag, servertest.Image(t, r.Push(t, "acme/app", content), nil, nil)).String()
}

// TestResolve: a tag was moved between the time of its use and now. Both digests count.
func TestResolve(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	before := time.Now().Add(-time.Minute)
	one, two := image(t, root, "v1", "one"), image(t, root, "v1", "two")
	answers := map[time.Time]string{before: two + " " + one, {}: two, time.Now().Add(time.Minute): two}
	src := &command.Source{Environ: o.environ}
	cmd := command.NewRoot(src, Commands(src)...)
	c, err := src.Client(cmd)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range answers {
		image := report.Image{Repository: "acme/app", Tag: "v1", At: at}
		found, err := report.Resolve([]report.Image{image}, asked{t.Context(), c, time.Minute})
		var got []string
		for _, i := range found.Items {
			got = append(got, i.Digest.String())
		}
		if err != nil || len(found.Unresolved) > 0 || strings.Join(got, " ") != want {
			t.Errorf("at %v: %s (%v), want %s", at, got, err, want)
		}
	}
	for _, unknown := range [][2]string{{"acme/app", "none"}, {"acme/none", "v1"}} {
		if states, err := (asked{t.Context(), c, time.Minute}).Tag(unknown[0], unknown[1], before); err != nil || len(states) > 0 {
			t.Errorf("%v: %v, %v", unknown, states, err)
		}
	}
}

// TestResolveOften: a tag was moved more often than a page of its history has states. Somebody who
// resolved it before that has its first digest, and a pod may have any.
func TestResolveOften(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	first, a, b := image(t, root, "v1", "one"), image(t, root, "a", "two"), image(t, root, "b", "three")
	for n := range 130 {
		to := a
		if n%2 > 0 {
			to = b
		}
		root.Manage(t, "PUT", "/repository/acme/app/tag/v1", `{"manifest_digest":"`+to+`"}`).WantStatus(t, 201)
	}
	src := &command.Source{Environ: o.environ}
	c, err := src.Client(command.NewRoot(src, Commands(src)...))
	if err != nil {
		t.Fatal(err)
	}
	used := report.Image{Host: "h", Repository: "acme/app", Tag: "v1", At: time.Now().Add(-time.Hour)}
	for since, want := range map[bool][]string{false: {b, first}, true: {b, a, first}} {
		used.Since = since
		found, err := report.Resolve([]report.Image{used}, asked{t.Context(), c, time.Minute})
		var got []string
		for _, item := range found.Items {
			got = append(got, item.Digest.String())
		}
		if err != nil || !slices.Equal(got, want) || len(found.Unresolved) > 0 {
			t.Errorf("since %v: %v (%v), want %v", since, got, err, want)
		}
	}
}

// TestResolveImage: a node knows an image by the digest of its configuration, or of its manifest.
func TestResolveImage(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	manifest := image(t, root, "v1", "one")
	image(t, root, "v2", "two")
	parsed, err := oci.ParseDigest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	src := &command.Source{Environ: o.environ}
	c, err := src.Client(command.NewRoot(src, Commands(src)...))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []oci.Digest{oci.Compute(oci.SHA256, []byte("one")), parsed} {
		if found, err := (asked{t.Context(), c, time.Minute}).Image("acme/app", id); err != nil || fmt.Sprint(found) != "["+manifest+"]" {
			t.Errorf("%s is %v (%v), want %s", id, found, err, manifest)
		}
	}
	for _, repository := range []string{"acme/app", "acme/none"} {
		if found, err := (asked{t.Context(), c, time.Minute}).Image(repository, oci.Compute(oci.SHA256, []byte("none"))); err != nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", repository, found, err)
		}
	}
}

// TestReportInAClosedRegistry: a robot that may read one namespace reports a cluster's images, of
// which some are of other namespaces, some can't be read, and some aren't there. It holds the
// others, and says what it lacks. What it held under a name that it may no longer read stays held.
func TestReportInAClosedRegistry(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	image(t, root, "v1", "one")
	image(t, root, "v2", "two")
	root.Put(t, "tools/purser", "latest", servertest.Image(t, root.Push(t, "tools/purser", "three"), nil, nil))
	var robot struct{ Token string }
	root.Manage(t, "PUT", "/organization/acme/robots/cluster", `{"actions":["hold","pull"]}`).Into(t, 201, &robot)
	root.Manage(t, "PUT", "/organization/acme/permissions/user/acme+cluster", `{"role":"reader"}`).WantStatus(t, 200)
	o.environ = append(o.environ[:2:2], "PURSER_TOKEN="+robot.Token)

	// As shipped, the report's own pod has an image of another namespace.
	own := "r.example/tools/purser:latest pod report"
	code, stdout, stderr := o.purser("r.example/acme/app:v1 pod a\n"+own, "report", "stdin", "c", "--namespace", "acme")
	if code != 0 || !strings.Contains(stderr, "1 image is of other namespaces than acme") || !strings.Contains(stdout, "digests                 1\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	list := "r.example/acme/app:v1 pod a\nr.example/acme/app:v2 pod b\nr.example/acme/ap:v1 pod c\nr.example/acme/app:v3 pod d\n" + own
	code, stdout, stderr = o.purser(list, "report", "stdin", "c", "--namespace", "acme")
	for _, want := range []string{"r.example/acme/ap:v1, used by pod c: ", "r.example/acme/app:v3, used by pod d: no such tag", "2 images were not resolved"} {
		if code != 4 || !strings.Contains(stderr, want) || !strings.Contains(stdout, "digests                 2\n") || !strings.Contains(stdout, "not resolved            2\n") {
			t.Errorf("exit code %d, want %q in\n%s%s", code, want, stdout, stderr)
		}
	}
	root.Manage(t, "PUT", "/repository/acme/app/tag/v3", `{"manifest_digest":"`+image(t, root, "v4", "four")+`"}`).WantStatus(t, 201)
	o.purser("r.example/acme/app:v3 pod d", "report", "stdin", "c", "--namespace", "acme")
	root.Manage(t, "DELETE", "/repository/acme/app/tag/v3?override_holds=true", "").WantStatus(t, 204)
	code, stdout, _ = o.purser("r.example/acme/app:v3 pod d", "report", "stdin", "c", "--namespace", "acme")
	if code != 4 || !strings.Contains(stdout, "kept for those          1\n") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	root.Manage(t, "DELETE", "/repository/acme/app/tag/v4", "").Refused(t, 409, "invalid_request", "pod d")
}
