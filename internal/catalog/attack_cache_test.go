package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// network is a proxy between a replica and the database. It forwards data, and can hold back a
// packet or cut a connection.
type network struct {
	net.Listener
	to string // the server's socket

	mu   sync.Mutex
	hold [2]func([]byte) bool // whether to hold back a packet: to the server, from the server
	cut  bool                 // whether to cut the connection to the sender of that packet
	kept chan struct{}        // closed when a packet is held back
	free chan struct{}        // closed when that packet may continue
}

const (
	toServer = iota
	fromServer
)

// between starts a proxy (network) for connections to the database dsn. It returns the proxy,
// and a DSN with which clients connect through it.
func between(t *testing.T, dsn string) (*network, string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Listener: l, to: fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)}
	if !strings.HasPrefix(cfg.Host, "/") {
		t.Skipf("the test's server has no socket: %s", cfg.Host)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("unix", n.to)
			if err != nil {
				c.Close() //nolint:errcheck // the client notices
				continue
			}
			wg.Go(func() { n.carry(s, c, toServer) })
			wg.Go(func() { n.carry(c, s, fromServer) })
		}
	})
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // nothing is lost
		n.release()
		wg.Wait()
	})
	port := l.Addr().(*net.TCPAddr).Port
	q := url.Values{"sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(cfg.User, cfg.Password),
		Host: fmt.Sprintf("127.0.0.1:%d", port), Path: cfg.Database, RawQuery: q.Encode()}
	return n, u.String()
}

// carry forwards the data of one direction of a connection, until the sender has closed its
// end and all data is delivered.
func (n *network) carry(to, from net.Conn, direction int) {
	defer func() {
		if direction == fromServer {
			to.Close()   //nolint:errcheck // both ends are done with
			from.Close() //nolint:errcheck
		} else if c, ok := to.(*net.UnixConn); ok {
			c.CloseWrite() //nolint:errcheck // the sender has closed its end
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		m, err := from.Read(buf)
		if m > 0 {
			n.keep(direction, buf[:m], from)
			if _, err := to.Write(buf[:m]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (n *network) keep(direction int, p []byte, from net.Conn) {
	n.mu.Lock()
	hold := n.hold[direction]
	if hold == nil || !hold(p) {
		n.mu.Unlock()
		return
	}
	n.hold[direction] = nil
	close(n.kept)
	free, cut := n.free, n.cut
	n.mu.Unlock()
	if cut {
		from.Close() //nolint:errcheck // its data was forwarded already
	}
	<-free
}

// keepNext makes the network hold back the next packet in the given direction that contains
// `text`, and everything after this packet on the same connection, until the test calls
// release. The returned channel is closed when the packet has arrived.
func (n *network) keepNext(direction int, text string) (kept <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hold[direction] = func(p []byte) bool { return strings.Contains(string(p), text) }
	n.kept, n.free = make(chan struct{}), make(chan struct{})
	return n.kept
}

func (n *network) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hold = [2]func([]byte) bool{}
	if n.free != nil {
		close(n.free)
		n.free = nil
	}
}

// behind opens a replica that connects to the database through a proxy (network), which can
// hold back packets and cut connections. The test makes one request at a time, so that all
// requests use the same connection.
func behind(t *testing.T) (*network, bundle) {
	t.Helper()
	n, dsn := between(t, dbtest.DSN(t))
	id := uuid.New()
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Replica: id.String(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return n, bundle{catalogtest.Bundle{Catalog: catalog.New(catalog.Options{DB: d, Replica: id, Log: slog.New(slog.DiscardHandler)}), DB: d}}
}

// A client disconnects, or the connection to the database breaks, after a change was sent to
// the database and before the database has answered. If the database makes the change, the
// caches must not serve the state before the change.
func TestAttackChangeOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	config := func(b bundle, t *testing.T) oci.Digest { return b.Push(t, "r", "config") }
	for what, c := range map[string]struct {
		cut    bool   // the connection breaks; else the client hangs up
		mark   string // text in the packet that makes the change
		change func(b bundle, ctx context.Context, d oci.Digest, other []byte) error
	}{
		"tag deleted": {false, "doomedtag", func(b bundle, ctx context.Context, _ oci.Digest, _ []byte) error {
			return b.DeleteTag(ctx, "r", "doomedtag")
		}},
		"connection broken": {true, "doomedtag", func(b bundle, ctx context.Context, _ oci.Digest, _ []byte) error {
			return b.DeleteTag(ctx, "r", "doomedtag")
		}},
		"tag moved": {false, "doomedtag", func(b bundle, ctx context.Context, _ oci.Digest, other []byte) error {
			_, err := b.TryPut(ctx, "r", other, "doomedtag")
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n, b := behind(t)
			b.Listen(t)
			cfg := config(b, t)
			payload := catalogtest.Image(t, cfg, nil, nil)
			other := catalogtest.Image(t, cfg, nil, map[string]any{"annotations": map[string]string{"n": "2"}})
			d := b.Put(t, "r", payload, "doomedtag")
			// Prepare the statements, so that the whole change is sent in one packet, which
			// can be held back.
			b.Put(t, "r", catalogtest.Image(t, cfg, nil, map[string]any{"annotations": map[string]string{"n": "3"}}), "x")
			if err := b.DeleteTag(t.Context(), "r", "x"); err != nil {
				t.Fatal(err)
			}
			session := b.Session(t)
			current := func() string {
				var s *string
				err := session.QueryRow(t.Context(), `SELECT encode(m.digest, 'hex') FROM tags t JOIN manifests m ON m.id = t.manifest_id
					WHERE t.name = 'doomedtag'`).Scan(&s)
				if err != nil && !errors.Is(err, pgx.ErrNoRows) {
					t.Fatal(err)
				}
				if s == nil {
					return ""
				}
				return *s
			}
			was := current()
			n.cut = c.cut
			kept := n.keepNext(toServer, c.mark)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := catalogtest.Later(func() error { return c.change(b, ctx, d, other) })
			select {
			case <-kept:
			case <-time.After(2 * time.Minute):
				t.Fatal("nothing was sent")
			}
			if !c.cut {
				cancel()
			}
			var err error
			select {
			case err = <-done:
			case <-time.After(3 * time.Second):
				// The call may wait for the database's answer although the client has
				// disconnected, so release the answer.
				n.release()
				err = catalogtest.Soon(t, what, done)
			}
			t.Logf("the caller was told: %v", err)
			get := func() string {
				m, err := b.ManifestByTag(t.Context(), "r", "doomedtag")
				if err != nil {
					return ""
				}
				return fmt.Sprintf("%x", m.Digest.Bytes())
			}
			get()
			n.release()
			catalogtest.Eventually(t, "the change is made", func() bool { return current() != was })
			now := current()
			catalogtest.Eventually(t, "the cache serves what is", func() bool { return get() == now })
		})
	}
}

// The database's answer to a read is held back while a put moves the tag. The read must not
// cache its outdated result.
func TestAttackLateFill(t *testing.T) {
	t.Parallel()
	n, b := behind(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	old := catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"version": "oldest"}})
	b.Put(t, "r", old, "t")
	if _, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil { // prepares the statement
		t.Fatal(err)
	}
	want := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	b.Put(t, "r", old, "t")
	kept := n.keepNext(fromServer, "oldest")
	done := catalogtest.Later(func() error { _, err := b.ManifestByTag(context.Background(), "r", "t"); return err })
	select {
	case <-kept:
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing was read")
	}
	if d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t"); d != want {
		t.Fatal(d)
	}
	n.release()
	if err := catalogtest.Soon(t, "the late reader", done); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		m, err := b.ManifestByTag(t.Context(), "r", "t")
		if err != nil || m.Digest != want {
			t.Fatalf("read %v, %v after the tag was moved to %s", m, err, want)
		}
	}
}

// A client asks by HEAD for a manifest, and PromiseManifestExists caches the promise that the
// manifest exists. Then the manifest is deleted and put again. The next HEAD must write a new
// promise into the review queue, instead of using the cached one.
func TestAttackPromiseOutlivesItsManifest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	payload := catalogtest.Image(t, config, nil, nil)
	d := b.Put(t, "r", payload, "t")
	promise := func() {
		t.Helper()
		if _, err := b.PromiseManifestExists(t.Context(), "r", d); err != nil {
			t.Fatal(err)
		}
	}
	promise()
	if err := b.DeleteManifest(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	b.Put(t, "r", payload, "t")
	if _, err := b.ManifestByDigest(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	promise()
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '1 hour'"); n != 1 {
		t.Error("HEAD said that the manifest is there, and nothing keeps it from review")
	}
}

// A transaction moves a tag before process b has registered in replicas, and so doesn't notify
// b. When b registers, it must not use its caches before that transaction has ended.
func TestAttackRegistrationWaits(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	a := replica(t, dsn)
	config := a.Push(t, "r", "config")
	old := a.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	a.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": "2"}}), "u")
	b := replica(t, dsn)
	x := a.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "UPDATE tags SET manifest_id = (SELECT manifest_id FROM tags WHERE name = 'u') WHERE name = 't'")
	ctx, cancel := context.WithCancel(t.Context())
	done := catalogtest.Later(func() error { return b.Catalog.Listen(ctx) })
	defer func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("listening: %v", err)
		}
	}()
	catalogtest.Eventually(t, "registered", func() bool { return b.Count(t, "SELECT count(*) FROM replicas") == 1 })
	for range 20 {
		if b.Caching() {
			t.Fatal("caches are in use while a change is under way that nobody will be told of")
		}
		if _, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil {
			t.Fatal(err)
		}
	}
	x.Exec(t, "COMMIT")
	b.WaitCaching(t)
	if m, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil || m.Digest == old {
		t.Fatalf("%v, %v: the tag has moved", m, err)
	}
}
