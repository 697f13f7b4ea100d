package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/jackc/pgx/v5/pgxpool"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
)

// puller is a client that pulls.
type puller struct {
	// pull pulls a tag or digest, with all content that it names for this machine's platform.
	pull func(repo, reference string)
	// forget makes the client delete its copy, so that it pulls the content again. It is nil
	// if the client keeps no copies.
	forget func(repo, tag, digest string)
	// asks says that the client sends only a HEAD for a tag whose content it already has.
	asks bool
	// all says that the client pulls an index with its children for all platforms.
	all bool
}

// pullers has a constructor for each client that the tests use. Each client pulls by requests
// of its own kind.
var pullers = map[string]func(t testing.TB, r *registry) puller{
	"crane":      cranePuller,
	"skopeo":     skopeoPuller,
	"podman":     podmanPuller,
	"regctl":     regctlPuller,
	"oras":       orasPuller,
	"containerd": containerdPuller,
	"docker":     dockerPuller,
}

func cranePuller(t testing.TB, r *registry) puller {
	crane := toolClient(t, "crane")
	return puller{pull: func(repo, reference string) {
		crane.Run("pull", "--platform", "linux/"+runtime.GOARCH, r.Ref(repo, reference), filepath.Join(newDir(t), "pulled"))
	}}
}

func skopeoPuller(t testing.TB, r *registry) puller {
	skopeo := skopeo(t)
	return puller{pull: func(repo, reference string) {
		skopeo.Run("copy", "--src-tls-verify=false", "docker://"+r.Ref(repo, reference), "oci:"+filepath.Join(newDir(t), "pulled")+":v1")
	}}
}

func podmanPuller(t testing.TB, r *registry) puller {
	podman := podman(t)
	return puller{pull: func(repo, reference string) {
		podman.Run("pull", "--quiet", "--tls-verify=false", r.Ref(repo, reference))
	}}
}

// regctlPuller returns a client that copies images with regctl. regctl doesn't pull content
// that the target directory already has.
func regctlPuller(t testing.TB, r *registry) puller {
	regctl, dir := regctl(t, r), newDir(t)
	return puller{
		asks: true, all: true,
		pull: func(repo, reference string) {
			regctl.Run("image", "copy", r.Ref(repo, reference), "ocidir://"+filepath.Join(dir, repo)+":v1")
		},
		forget: func(string, string, string) { dir = newDir(t) },
	}
}

func orasPuller(t testing.TB, r *registry) puller {
	return puller{all: true, pull: func(repo, reference string) {
		t.Helper()
		if _, err := oras.Copy(t.Context(), orasRepository(t, r, repo), reference, memory.New(), "", oras.DefaultCopyOptions); err != nil {
			t.Fatalf("oras.Copy of %s: %v", r.Ref(repo, reference), err)
		}
	}}
}

// The test pulls with each client, or with those of machines that run containers alone in
// "make test". The clients differ in the requests that they send for a
// pull. The test expects that a pull counts once, whatever requests the client sends for it.
func TestPullsOfClients(t *testing.T) {
	for name, client := range pullers {
		if !testscale.All && name != "containerd" && name != "docker" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			s := newPullScene(t, 1)
			p := client(t, s.r)
			s.byTag(p)
			s.byTagThenDigest(p)
			s.byDigest(p)
			s.index(p)
		})
	}
}

// pullScene is a registry that counts pulls, with its database.
type pullScene struct {
	t        testing.TB
	r        *registry
	replicas []*registry // all replicas, r included
	db       *pgxpool.Pool
	fences   int64 // the number of pulls that settle has made
}

// newPullScene starts a registry with the given number of replicas. It also pushes the image
// "fence", which settle pulls to find out whether all earlier pulls are counted.
func newPullScene(t testing.TB, replicas int, env ...string) *pullScene {
	t.Helper()
	dsn := dbtest.EmptyDSN(t)
	env = append(env, "PURSER_DATABASE_MAIN="+dsn, "PURSER_STORAGE_FILESYSTEM_PATH="+newDir(t))
	s := &pullScene{t: t, db: openPool(t, dsn)}
	for range replicas {
		s.replicas = append(s.replicas, startRegistry(t, options{env: env}))
	}
	s.r = s.replicas[0]
	s.push("fence", "v1", newImage(t, 1, 1<<10))
	return s
}

// byTag pulls a tag three times: once, once more when the client already has the content, and
// once after the tag has moved to another image.
func (s *pullScene) byTag(p puller) {
	s.t.Helper()
	img, next := newPlatformImage(s.t, 1, 4<<10, runtime.GOARCH), newPlatformImage(s.t, 1, 4<<10, runtime.GOARCH)
	first, second := digestOf(s.t, img), digestOf(s.t, next)
	s.push("tag", "v1", img)
	p.pull("tag", "v1")
	s.expect("a pull by tag", "tag", "v1", 1, map[string]int64{first: 1})

	p.pull("tag", "v1")
	n := int64(2)
	if p.asks {
		n = 1
	}
	s.expect("a second pull by tag", "tag", "v1", n, map[string]int64{first: n})
	if p.asks {
		s.checked("tag", "v1") // later HEADs may be those of seen
	}

	s.push("tag", "v1", next)
	s.seen("tag", "v1", second)
	p.pull("tag", "v1")
	s.expect("a pull of a tag that moved", "tag", "v1", n+1, map[string]int64{first: n, second: 1})
}

// byTagThenDigest pulls a tag and soon afterwards the tag's manifest by its digest.
func (s *pullScene) byTagThenDigest(p puller) {
	s.t.Helper()
	img := newPlatformImage(s.t, 1, 4<<10, runtime.GOARCH)
	digest := digestOf(s.t, img)
	s.push("both", "v1", img)
	p.pull("both", "v1")
	if p.forget != nil {
		p.forget("both", "v1", digest)
	}
	p.pull("both", digest)
	s.expect("a pull by tag, and then one by digest", "both", "v1", 1, map[string]int64{digest: 2})
}

// byDigest pulls a manifest that has a tag by its digest.
func (s *pullScene) byDigest(p puller) {
	s.t.Helper()
	img := newPlatformImage(s.t, 1, 4<<10, runtime.GOARCH)
	digest := digestOf(s.t, img)
	s.push("digest", "v1", img)
	p.pull("digest", digest)
	s.expect("a pull by digest", "digest", "v1", 0, map[string]int64{digest: 1})
}

// index pulls the tag of an index.
func (s *pullScene) index(p puller) {
	s.t.Helper()
	index := newIndex(s.t, runtime.GOARCH, "s390x")
	children := s.pushIndex("index", "v1", index)
	want := map[string]int64{digestOf(s.t, index): 1, children[0]: 1, children[1]: 0}
	if p.all {
		want[children[1]] = 1
	}
	p.pull("index", "v1")
	s.expect("a pull of an index by tag", "index", "v1", 1, want)
}

// manifest has the methods that images and indexes both have.
type manifest interface {
	RawManifest() ([]byte, error)
	MediaType() (types.MediaType, error)
}

// put pushes a manifest under a reference (a tag or digest), and sends no request that might
// count as a pull.
func (s *pullScene) put(repo, reference string, m manifest) {
	s.t.Helper()
	text, err := m.RawManifest()
	if err != nil {
		s.t.Fatal(err)
	}
	mediaType, err := m.MediaType()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.r.API().putManifest(s.t.Context(), repo, reference, string(mediaType), text); err != nil {
		s.t.Fatal(err)
	}
}

// push pushes an image.
func (s *pullScene) push(repo, reference string, img v1.Image) {
	s.t.Helper()
	config, err := img.RawConfigFile()
	if err != nil {
		s.t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		s.t.Fatal(err)
	}
	blobs := [][]byte{config}
	for _, layer := range layers {
		r, err := layer.Compressed()
		if err != nil {
			s.t.Fatal(err)
		}
		blob, err := io.ReadAll(r)
		if err != nil {
			s.t.Fatal(err)
		}
		blobs = append(blobs, blob)
	}
	for _, blob := range blobs {
		if _, err := s.r.API().pushBlob(s.t.Context(), repo, blob, 1); err != nil {
			s.t.Fatal(err)
		}
	}
	s.put(repo, reference, img)
}

// pushIndex pushes an index with its children, and returns the children's digests.
func (s *pullScene) pushIndex(repo, reference string, index v1.ImageIndex) (children []string) {
	s.t.Helper()
	list, err := index.IndexManifest()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, child := range list.Manifests {
		img, err := index.Image(child.Digest)
		if err != nil {
			s.t.Fatal(err)
		}
		s.push(repo, child.Digest.String(), img)
		children = append(children, child.Digest.String())
	}
	s.put(repo, reference, index)
	return children
}

// settle waits until all earlier pulls are counted. For this it pulls the image "fence"
// through each replica, and waits until these later pulls are counted.
func (s *pullScene) settle() {
	s.t.Helper()
	for _, r := range s.replicas {
		if _, _, err := r.API().manifest(s.t.Context(), "fence", "v1"); err != nil {
			s.t.Fatal(err)
		}
		s.fences++
	}
	eventually(s.t, time.Minute, func() error {
		s.r.remote("pulls", "flush")
		if n := s.tagPulls("fence", "v1"); n != s.fences {
			return fmt.Errorf("of the last pulls %d are counted, want %d", n, s.fences)
		}
		return nil
	})
}

// tagPulls returns a tag's number of pulls.
func (s *pullScene) tagPulls(repo, tag string) int64 {
	s.t.Helper()
	var got struct {
		Count int64 `json:"tag_pull_count"`
	}
	s.r.manage("GET", "/repository/"+repo+"/tag/"+tag+"/pull_statistics", nil, &got, http.StatusOK)
	return got.Count
}

// manifestPulls returns a manifest's number of pulls.
func (s *pullScene) manifestPulls(repo, digest string) int64 {
	s.t.Helper()
	var got struct {
		Count int64 `json:"manifest_total_pull_count"`
	}
	s.r.manage("GET", "/repository/"+repo+"/manifest/"+digest+"/pull_statistics", nil, &got, http.StatusOK)
	return got.Count
}

// seen waits until all replicas know that the tag has moved to a digest. It asks by HEAD as a
// client of its own, so that no pull is counted.
func (s *pullScene) seen(repo, tag, digest string) {
	s.t.Helper()
	for _, r := range s.replicas {
		eventually(s.t, time.Minute, func() error {
			a, err := r.API().do(s.t.Context(), request{method: "HEAD", path: "/v2/" + repo + "/manifests/" + tag,
				want: http.StatusOK, header: map[string]string{"Accept": manifestTypes, "User-Agent": "looker"}})
			if err != nil {
				return err
			}
			if got := a.header.Get("Docker-Content-Digest"); got != digest {
				return fmt.Errorf("%s has %s at %s, want %s", r.host, got, tag, digest)
			}
			return nil
		})
	}
}

// expect fails the test unless the tag's count becomes `count`, and the manifests' counts
// become those in `manifests`, by digest. It waits for that: a pull by digest counts for the
// tag of an earlier HEAD only when all processes have written their pulls, which takes a few
// seconds.
func (s *pullScene) expect(after, repo, tag string, count int64, manifests map[string]int64) {
	s.t.Helper()
	s.settle()
	eventually(s.t, time.Minute, func() error {
		s.r.remote("pulls", "flush")
		if got := s.tagPulls(repo, tag); got != count {
			return fmt.Errorf("after %s the count of %s is %d, want %d", after, s.r.Ref(repo, tag), got, count)
		}
		for digest, want := range manifests {
			if got := s.manifestPulls(repo, digest); got != want {
				return fmt.Errorf("after %s the count of %s is %d, want %d", after, s.r.Ref(repo, digest), got, want)
			}
		}
		return nil
	})
}

// checked fails the test unless the statistics show that a client has asked for the tag by
// HEAD in the last ten minutes.
func (s *pullScene) checked(repo, tag string) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		s.r.remote("pulls", "flush")
		n := column[int](s.t, s.db, `SELECT count(*) FROM tagpullstatistics JOIN repositories r ON r.id = repository_id
			WHERE r.path = $1 AND tag_name = $2 AND last_check_date > now() - interval '10 minutes'`, repo, tag)[0]
		if n == 0 {
			return fmt.Errorf("nothing tells that %s was asked for", s.r.Ref(repo, tag))
		}
		return nil
	})
}
