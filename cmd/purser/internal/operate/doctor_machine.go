package operate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/operatorfile"
)

// Limits below which the doctor warns.
const (
	fewBytes       = 2 << 30 // free in a file system
	fewPercent     = 5       // of its space or inodes
	fewDescriptors = 4096
	certificateEnd = 14 * 24 * time.Hour
)

// examineConfiguration looks at settings that are valid and dangerous.
func (d *doctor) examineConfiguration(ctx context.Context) error {
	if joined, ok := backend.CheckSettings(ctx, d.cfg, nil).(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			if errors.Is(err, fs.ErrPermission) {
				d.find(levelNote, "the configuration", "run the command as the registry's user: sudo -u purser purser doctor", "a file couldn't be examined as this user: %v", err)
				continue
			}
			d.find(levelError, "the configuration", `change it; "purser config check" tells whether it is valid`, "the server doesn't start with it: %v", err)
		}
	}
	h := d.cfg.HTTP
	switch beyond := !onLoopback(h.Addr); {
	case d.cfg.Exposed() && beyond:
		d.find(levelError, "auth.enabled", "set auth.enabled: true, or listen on 127.0.0.1", "everybody who reaches %s may push, delete and administer", h.Addr)
	case d.cfg.Exposed():
		d.find(levelError, "auth.enabled", "remove auth.enabled: false and http.allow_anonymous, so that clients log in; keep it only if the proxy asks who it is",
			"everybody who reaches %s may push, delete and administer: others reach it, by %s", h.Place(), strings.Join(h.ReachedBy(), ", "))
	case d.cfg.Auth.LocalOnly:
		d.find(levelNote, "auth.enabled", "set auth.enabled: true if others use this machine; behind a proxy set http.external_url and http.trusted_proxies, and clients log in",
			"everybody on this machine may push, delete and administer at %s; requests that come through a proxy are refused", h.Addr)
	case d.cfg.Source("auth.enabled") == "default" && !beyond:
		d.find(levelNote, "auth.enabled", "set auth.enabled: true, so that it doesn't depend on other settings",
			"clients log in for the only reason that others reach the registry, by %s", strings.Join(h.ReachedBy(), ", "))
	}
	if !onLoopback(h.Addr) {
		if !h.TLS.Enabled() && len(h.TrustedProxies) == 0 && !strings.HasPrefix(h.ExternalURL, "https://") {
			d.find(levelWarning, "http.tls", "set http.tls.cert and http.tls.key, or http.tls.acme; behind a proxy with TLS set http.external_url and http.trusted_proxies",
				"passwords and tokens travel to %s in plain text", h.Addr)
		}
	}
	if !d.cfg.GC.ReviewBlobs || !d.cfg.GC.ReviewManifests {
		d.find(levelNote, "gc.review_blobs, gc.review_manifests", "see that they are on in at least one replica", "garbage collection is off here")
	}
	return d.examineCertificate(ctx)
}

// onLoopback says whether other machines can't reach an address to listen on.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// examineCertificate reads the certificate from its files. Those by ACME renew themselves.
func (d *doctor) examineCertificate(ctx context.Context) error {
	t := d.cfg.HTTP.TLS
	if t.Cert == "" {
		return nil
	}
	cert, err := operatorfile.Read(ctx, t.Cert, operatorfile.MaxPEM)
	if err != nil {
		return err
	}
	key, err := operatorfile.Read(ctx, t.Key, operatorfile.MaxPEM)
	if err != nil {
		return err
	}
	c, err := tls.X509KeyPair(cert.Text, key.Text)
	if err != nil {
		return err
	}
	const remedy = "renew it; the server reads the new files within 10 seconds"
	switch left := time.Until(c.Leaf.NotAfter); {
	case left <= 0:
		d.find(levelError, "http.tls.cert", remedy, "the certificate has expired at %s, so clients refuse to connect", c.Leaf.NotAfter.UTC().Format(time.DateTime))
	case time.Until(c.Leaf.NotBefore) > 0:
		d.find(levelError, "http.tls.cert", "check this machine's clock, or use another certificate", "the certificate isn't valid before %s, so clients refuse to connect", c.Leaf.NotBefore.UTC().Format(time.DateTime))
	case left < certificateEnd:
		d.find(levelWarning, "http.tls.cert", remedy, "the certificate expires in %s", explain.Age(left))
	}
	if key.ForAll() {
		d.find(levelWarning, "http.tls.key", "take the right to read it from others: chmod o-r "+t.Key, "each user of this machine can read the certificate's key")
	}
	return nil
}

// examineMachine looks at the space of the directories, and at how many files may be open.
func (d *doctor) examineMachine() error {
	if full, ok := errors.AsType[*blob.DiskFullError](backend.Disks(d.cfg).Room()); ok {
		d.find(levelError, "storage.reserve", `delete images and run "purser gc run", or make the disk larger, or lower storage.reserve if it is more than the database needs`,
			"pushes are refused: %v (%s)", full, full.Path)
	}
	places := map[string]string{}
	if d.cfg.Database.Main == "" {
		places["data_dir"] = d.cfg.DataDir
	}
	if dir := backend.StorageOf(d.cfg.Storage).Directory(); dir != "" {
		places["storage.filesystem.path"] = dir
	}
	for setting, path := range places {
		s, err := spaceOf(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if s.bytes > 0 && (s.free < fewBytes || s.free/100 < s.bytes/10_000*fewPercent) {
			d.find(levelWarning, setting, "make space, or move it to a larger volume: when it is full, pushes fail", "the file system of %s has only %s left", path, humanize.IBytes(s.free))
		}
		if s.inodes > 0 && s.freeInodes < s.inodes/100*fewPercent {
			d.find(levelWarning, setting, "move it to a file system with more inodes", "the file system of %s has only %s inodes left", path, humanize.Comma(int64(s.freeInodes)))
		}
	}
	if n := descriptorLimit(); n > 0 && n < fewDescriptors {
		d.find(levelWarning, "open files", "raise the limit, in systemd by LimitNOFILE=65536", "this user may have only %d files open; each connection of a client needs one or two", n)
	}
	return nil
}

// space is how much a file system has, and has left for users without privileges.
type space struct {
	bytes, free        uint64
	inodes, freeInodes uint64
}
