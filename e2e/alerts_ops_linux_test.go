//go:build all

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// failure lets something fail for real, and says which alerts must fire then: with the labels that a
// text of them has. `fail` starts a registry, scrapes it while all is well, and twice during the
// failure.
type failure struct {
	what   string
	alerts map[string]string // "": whatever the labels are
	lasts  time.Duration     // default: four hours
	fail   func(t *testing.T) (healthy, first, second scrape)
}

var failures = []failure{
	{"the process has ended", map[string]string{"PurserDown": ""}, 0, failProcess},
	{"Prometheus knows the process no more", map[string]string{"PurserAbsent": ""}, 0, failDiscovery},
	{"PostgreSQL is gone", map[string]string{
		"PurserRequestsFail": "", "PurserStatisticsAreLate": "", "PurserWorkerIsSilent": "worker:quotas", "PurserNotReady": "instance:", "PurserDatabaseAway": "",
	}, 0, failPostgres},
	{"statements wait for a lock", map[string]string{"PurserRequestsAreSlow": "", "PurserConnectionsWait": "instance:"}, 0, failLocks},
	{"the certificate authority is gone", map[string]string{"PurserCertificateNotRenewed": ""}, 0, failAuthority},
	{"the database's clock is ahead", map[string]string{"PurserClocksDisagree": ""}, 0, failOffset},
	{"the audit log can't be written", map[string]string{"PurserPullsDropped": ""}, 0, failAuditLog},
	{"the database refuses deletions", map[string]string{"PurserReviewsSetAside": "queue:manifests", "PurserPruningFails": ""}, 7 * time.Hour, failDeletions},
	{"rows of a deleted repository can't be deleted", map[string]string{"PurserLooseKeysFail": "database:main", "PurserLooseKeysAreLate": "table:public.repositories"}, 5 * time.Hour, failLooseKeys},
	{"the workers of garbage collection are off", map[string]string{"PurserCollectionIsLate": "queue:manifests"}, 0, failCollection},
	{"the S3 server is gone", map[string]string{"PurserStoreDoesNotDelete": "", "PurserDoomedBytesGrow": ""}, 500 * time.Hour, failS3},
	{"the volume isn't mounted", map[string]string{"PurserWrongStore": ""}, 0, failVolume},
	{"a disk becomes full", map[string]string{"PurserDiskFull": "of:blobs", "PurserDiskFills": "of:blobs"}, 0, failDisk},
	{"nobody backs up, and a copy is damaged", map[string]string{
		"PurserBackupIsOld": "", "PurserBackupIsUnverified": "", "PurserBackupDamaged": "",
	}, 30 * time.Hour, failBackup},
	{"nobody has ever backed up", map[string]string{"PurserNeverBackedUp": ""}, 30 * time.Hour, failFirstBackup},
	{"an object was removed", map[string]string{"PurserBlobsLost": ""}, 0, failObject},
	{"the database's clock is in doubt", map[string]string{"PurserDeletionRests": ""}, 0, failClock},
	{"nobody renews the certificate", map[string]string{"PurserCertificateEnds": ""}, 0, failCertificate},
	{"Redis is gone", map[string]string{"PurserRedisDown": ""}, 0, failRedis},
	{"a quota is full, a receiver of notices, a reporter and an image in use are gone", map[string]string{
		"PurserQuotaNearlyUsed": "namespace:acme", "PurserWebhooksWait": "", "PurserReporterIsSilent": "", "PurserImagesUnresolved": "",
	}, 0, failUsers},
}

// TestOpsAlertsOfFailures lets each thing fail that an alert is about, and evaluates the alert on what
// the registry's process says of itself. Each alert has such a failure.
func TestOpsAlertsOfFailures(t *testing.T) {
	beginOwn(t)
	rules, tested := alertRules(t), map[string]bool{}
	for _, f := range failures {
		for name := range f.alerts {
			tested[name] = true
			if _, ok := rules[name]; !ok {
				t.Errorf("%s: there is no alert %s", f.what, name)
			}
		}
	}
	for name := range rules {
		if !tested[name] {
			t.Errorf("no failure lets %s fire: add one", name)
		}
	}
	for _, f := range failures {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			if f.lasts == 0 {
				f.lasts = 4 * time.Hour
			}
			healthy, first, second := f.fail(t)
			future := foresee(t, f.lasts, healthy, first, second)
			for name, labels := range f.alerts {
				fired := future.fires(rules[name])
				if fired == nil || !strings.Contains(fmt.Sprint(fired), labels) {
					t.Errorf("%s (%s) fires as %v, want one with %q", name, rules[name].Expr, fired, labels)
				}
			}
			calm := foresee(t, time.Minute, healthy, healthy, healthy)
			for name := range f.alerts {
				if calm.before(rules[name], healthy.at) {
					t.Errorf("%s holds while all is well", name)
				}
			}
		})
	}
}

// until scrapes a registry until the sum of the series whose names begin with a text is as wanted.
func (r *registry) until(what func(sum float64) bool, series string) (s scrape) {
	r.t.Helper()
	eventually(r.t, 3*time.Minute, func() error {
		s = r.scrape()
		sum, found := 0.0, false
		for name, value := range s.series {
			if strings.HasPrefix(name, series) {
				sum, found = sum+value, true
			}
		}
		if !found || !what(sum) {
			return fmt.Errorf("%s is %v (it exists: %v)", series, sum, found)
		}
		return nil
	})
	return s
}

// sum returns the sum of the series whose names begin with a text.
func (s scrape) sum(series string) (sum float64) {
	for name, value := range s.series {
		if strings.HasPrefix(name, series) {
			sum += value
		}
	}
	return sum
}

func atLeast(n float64) func(float64) bool { return func(sum float64) bool { return sum >= n } }

// startFailing starts a registry with a PostgreSQL of its own, and pushes acme/app:v1.
func startFailing(t *testing.T, env ...string) (*registry, *postgres) {
	t.Helper()
	pg := startPostgres(t)
	r := startRegistry(t, options{env: append([]string{"PURSER_DATABASE_MAIN=" + pg.DSN()}, env...)})
	if _, err := r.API().pushImage(t.Context(), "acme/app", "v1", randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	return r, pg
}

func failProcess(t *testing.T) (healthy, first, second scrape) {
	r := startRegistry(t, options{})
	healthy = r.scrape()
	r.Stop()
	first = r.scrape()
	return healthy, first, r.scrape()
}

func failDiscovery(t *testing.T) (healthy, first, second scrape) {
	healthy = startRegistry(t, options{}).scrape()
	gone := scrape{time.Now(), map[string]float64{}}
	return healthy, gone, gone
}

// failLocks locks a table twice for longer than a second, while more requests need it than there are
// connections.
func failLocks(t *testing.T) (healthy, first, second scrape) {
	const slow = `purser_http_request_duration_seconds_count{method="GET",route="/v2/{name}/manifests/{ref}"`
	r, pg := startFailing(t, "PURSER_DATABASE_MAX_CONNS=4")
	var tags atomic.Int64
	ask := func() { getStatus(t.Context(), fmt.Sprintf("%s/v2/acme/app/manifests/v%d", r.URL(), tags.Add(1))) } // of another tag each time
	ask()
	healthy = r.scrape()
	conn, err := pgx.Connect(t.Context(), pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) }) //nolint:errcheck // nothing is lost
	lock := func() (s scrape) {
		if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE tags"); err != nil {
			t.Fatal(err)
		}
		before := r.scrape().sum(slow)
		var asking sync.WaitGroup
		for range 10 {
			asking.Go(ask)
		}
		r.until(atLeast(10), "purser_http_requests_in_flight")
		<-time.After(1500 * time.Millisecond) // a slow request is one that takes longer than a second
		if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
			t.Fatal(err)
		}
		asking.Wait()
		return r.until(atLeast(before+10), slow)
	}
	first = lock()
	return healthy, first, lock()
}

func failAuthority(t *testing.T) (healthy, first, second scrape) {
	const failed = `purser_acme_attempts_total{result="failed"`
	r := startRegistry(t, options{env: []string{"PURSER_HTTP_TLS_ACME_HOSTS=registry.example.com", "PURSER_HTTP_TLS_ACME_ACCEPT_TERMS=true",
		"PURSER_HTTP_TLS_ACME_DIRECTORY_URL=https://" + freeAddr(t) + "/directory"}})
	healthy = r.until(atLeast(1), failed)
	first = r.until(atLeast(healthy.sum(failed)+1), failed)
	return healthy, first, r.until(atLeast(first.sum(failed)+1), failed)
}

func failOffset(t *testing.T) (healthy, first, second scrape) {
	const offset = "purser_clock_offset_seconds"
	pg, set := startPostgresWithClock(t)
	r := startRegistry(t, options{env: []string{"PURSER_DATABASE_MAIN=" + pg.DSN()}})
	healthy = r.until(func(s float64) bool { return s < 30 }, offset)
	set("+90")
	first = r.until(atLeast(80), offset)
	return healthy, first, first
}

func failPostgres(t *testing.T) (healthy, first, second scrape) {
	const lag = "purser_pull_statistics_lag_seconds"
	r, pg := startFailing(t, "PURSER_PULL_STATISTICS_INTERVAL=1s")
	healthy = r.until(atLeast(0), lag)
	pg.Stop(syscall.SIGQUIT)
	ask := func() {
		for range 5 {
			getStatus(t.Context(), r.URL()+"/v2/acme/app/tags/list")
		}
	}
	ask()
	r.until(func(ok float64) bool { return ok == 0 }, `purser_ready_check{check="database"`) // what it said before is told for a second
	first = r.until(atLeast(1), lag)
	ask()
	return healthy, first, r.until(atLeast(first.sum(lag)+3), lag)
}

func failAuditLog(t *testing.T) (healthy, first, second scrape) {
	r, pg := startFailing(t, "PURSER_AUDIT_JOIN_PULLS=false")
	healthy = r.scrape()
	conn, err := pgx.Connect(t.Context(), pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) }) //nolint:errcheck // nothing is lost
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE auditlog IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	pulling, stop := context.WithCancel(t.Context())
	defer stop()
	var pulls sync.WaitGroup
	for range 8 { // until the entries that wait fill the memory for them
		pulls.Go(func() {
			for pulling.Err() == nil {
				if _, _, err := r.API().manifest(pulling, "acme/app", "v1"); err != nil && pulling.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	first = r.until(atLeast(1), "purser_audit_pulls_dropped_total")
	stop()
	pulls.Wait()
	return healthy, first, first
}

// refuseDeletion lets PostgreSQL refuse to delete rows of a table.
const refuseDeletion = `CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the disk of this table is broken'; END $$;
	CREATE TRIGGER refuse BEFORE DELETE ON %s FOR EACH ROW EXECUTE FUNCTION refuse()`

func failDeletions(t *testing.T) (healthy, first, second scrape) {
	r, pg := startFailing(t, "PURSER_GC_REVIEW_AFTER=1s", "PURSER_GC_SET_ASIDE_AFTER=1", "PURSER_AUTOPRUNE_INTERVAL=1s")
	healthy = r.until(atLeast(0), `purser_gc_queue_rows{queue="manifests",state="set_aside"`)
	pg.exec(fmt.Sprintf(refuseDeletion, "manifests"), fmt.Sprintf(refuseDeletion, "tags"))
	for i := range 2 {
		if _, err := r.API().pushImage(t.Context(), "acme/app", fmt.Sprintf("v%d", i+2), randomBytes(1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	untagged, err := r.API().pushImage(t.Context(), "acme/other", "v1", randomBytes(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.API().pushImage(t.Context(), "acme/other", "v1", randomBytes(1<<10)); err != nil { // moves the tag
		t.Fatal(err)
	}
	t.Logf("%s waits for its review", untagged)
	r.remote("policy", "create", "acme", "--num-tags", "1", "--mode", "on", "--yes")
	r.until(atLeast(1), `purser_autoprune_runs_total{state="failure"`)
	second = r.until(atLeast(1), `purser_gc_queue_rows{queue="manifests",state="set_aside"`)
	return healthy, second, second
}

func failLooseKeys(t *testing.T) (healthy, first, second scrape) {
	const failed, oldest = "loose_foreign_key_run_failures_total", `loose_foreign_key_oldest_pending_seconds{database="main",table="public.repositories"`
	r, pg := startFailing(t, "PURSER_LOOSE_FOREIGN_KEYS_INTERVAL=1s", "PURSER_TRASH_KEEP=0s")
	healthy = r.scrape()
	pg.exec(fmt.Sprintf(refuseDeletion, "repository_blobs"))
	r.remote("repo", "delete", "acme/app", "--yes")
	first = r.until(atLeast(1), failed)
	first = r.until(atLeast(first.sum(oldest)), oldest)
	r.until(atLeast(first.sum(failed)+1), failed) // the pauses between attempts become long
	return healthy, first, r.until(atLeast(first.sum(oldest)+1), oldest)
}

func failCollection(t *testing.T) (healthy, first, second scrape) {
	const overdue = `purser_gc_oldest_overdue_seconds{queue="manifests"`
	r, _ := startFailing(t, "PURSER_GC_REVIEW_MANIFESTS=false", "PURSER_GC_REVIEW_AFTER=1s")
	healthy = r.until(atLeast(0), overdue)
	if _, err := r.API().pushImage(t.Context(), "acme/app", "v1", randomBytes(1<<10)); err != nil { // moves the tag
		t.Fatal(err)
	}
	first = r.until(atLeast(1), overdue)
	return healthy, first, r.until(atLeast(first.sum(overdue)+10), overdue)
}

func failS3(t *testing.T) (healthy, first, second scrape) {
	const doomed, refused = "purser_gc_doomed_bytes", "purser_gc_sweep_failures_total"
	env, s3 := startS3Server(t)
	r, _ := startFailing(t, append(env, "PURSER_GC_REVIEW_AFTER=10s")...)
	healthy = r.until(atLeast(0), doomed)
	images := map[string]string{}
	for _, repo := range []string{"one", "two"} {
		d, err := r.API().pushImage(t.Context(), "acme/"+repo, "v1", randomBytes(20<<20))
		if err != nil {
			t.Fatal(err)
		}
		images[repo] = d.String()
	}
	remove := func(repo string) {
		if _, err := r.API().do(t.Context(), request{method: "DELETE", path: "/v2/acme/" + repo + "/manifests/" + images[repo], want: http.StatusAccepted}); err != nil {
			t.Fatal(err)
		}
	}
	s3.kill()
	remove("one")
	r.until(atLeast(1), refused)
	first = r.until(atLeast(20<<20), doomed)
	remove("two")
	r.until(atLeast(first.sum(refused)+1), refused)
	return healthy, first, r.until(atLeast(40<<20), doomed)
}

func failVolume(t *testing.T) (healthy, first, second scrape) {
	dir := newDir(t)
	r, _ := startFailing(t, "PURSER_STORAGE_FILESYSTEM_PATH="+dir)
	healthy = r.scrape()
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir + ".away") }) //nolint:errcheck // of the test
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	first = r.until(atLeast(1), "purser_storage_wrong_store")
	return healthy, first, first
}

func failObject(t *testing.T) (healthy, first, second scrape) {
	dir := newDir(t)
	r, pg := startFailing(t, "PURSER_STORAGE_FILESYSTEM_PATH="+dir)
	layer := randomBytes(12345)
	if _, err := r.API().pushImage(t.Context(), "acme/app", "v1", layer); err != nil {
		t.Fatal(err)
	}
	healthy = r.until(atLeast(0), "purser_lost_blobs")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() != int64(len(layer)) {
			return err
		}
		return os.Remove(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PURSER_DATABASE_MAIN=" + pg.DSN(), "PURSER_STORAGE_FILESYSTEM_PATH=" + dir}
	if code, out := purser(t, env, "check", "--data-dir", r.opt.dataDir, "--repair"); !strings.Contains(out, "1 blob") {
		t.Fatalf("purser check exited with %d:\n%s", code, out)
	}
	first = r.until(atLeast(1), "purser_lost_blobs")
	return healthy, first, first
}

func failDisk(t *testing.T) (healthy, first, second scrape) {
	const free = `purser_disk_free_bytes{of="blobs"`
	disk := smallDisk(t, 256)
	r, _ := startFailing(t, "PURSER_STORAGE_FILESYSTEM_PATH="+filepath.Join(disk, "blobs"))
	healthy = r.until(atLeast(200<<20), free)
	use := func(name string, bytes int) {
		if err := os.WriteFile(filepath.Join(disk, name), make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	use("one", 200<<20)
	first = r.until(func(n float64) bool { return n < 56<<20 }, free)
	use("two", 10<<20)
	return healthy, first, r.until(func(n float64) bool { return n < first.sum(free) }, free)
}

func failBackup(t *testing.T) (healthy, first, second scrape) {
	dir, backups := newDir(t), newDir(t)
	r, pg := startFailing(t, "PURSER_STORAGE_FILESYSTEM_PATH="+dir)
	run := func(want int, args ...string) {
		t.Helper()
		env := []string{"PURSER_DATABASE_MAIN=" + pg.DSN(), "PURSER_STORAGE_FILESYSTEM_PATH=" + dir}
		if code, out := purser(t, env, append(args, backups, "--data-dir", r.opt.dataDir)...); code != want {
			t.Fatalf("purser %v exited with %d:\n%s", args, code, out)
		}
	}
	run(0, "backup")
	run(0, "backup", "verify", "--deep")
	healthy = r.until(atLeast(1), "purser_backup_last_verification_timestamp_seconds")
	copies, err := filepath.Glob(filepath.Join(backups, "objects/*/*"))
	if err != nil || len(copies) == 0 {
		t.Fatalf("%d copies, %v", len(copies), err)
	}
	if err := os.Truncate(copies[0], 1); err != nil {
		t.Fatal(err)
	}
	run(4, "backup", "verify")
	pg.exec("UPDATE backups SET snapshot_at = snapshot_at - interval '2 days', verified_at = verified_at - interval '8 days'") // time passes
	second = r.until(atLeast(1), "purser_backup_damaged")
	return healthy, second, second
}

// failFirstBackup lets the database forget its only backup. So it looks like that of a registry without any.
func failFirstBackup(t *testing.T) (healthy, first, second scrape) {
	const snapshot = "purser_backup_last_snapshot_timestamp_seconds"
	dir := newDir(t)
	r, pg := startFailing(t, "PURSER_STORAGE_FILESYSTEM_PATH="+dir)
	env := []string{"PURSER_DATABASE_MAIN=" + pg.DSN(), "PURSER_STORAGE_FILESYSTEM_PATH=" + dir}
	if code, out := purser(t, env, "backup", newDir(t), "--data-dir", r.opt.dataDir); code != 0 {
		t.Fatalf("purser backup exited with %d:\n%s", code, out)
	}
	healthy = r.until(atLeast(1), snapshot)
	pg.exec("DELETE FROM backups")
	second = r.until(func(at float64) bool { return at == 0 }, snapshot)
	return healthy, second, second
}

func failCertificate(t *testing.T) (healthy, first, second scrape) {
	const ends = "purser_tls_certificate_expiry_timestamp_seconds"
	cert, key := newCertificateFor(t, 90*24*time.Hour)
	r := startRegistry(t, options{env: []string{"PURSER_HTTP_TLS_CERT=" + cert, "PURSER_HTTP_TLS_KEY=" + key}})
	healthy = r.scrape()
	newCert, newKey := newCertificateFor(t, 6*24*time.Hour) // as the old one will be in 84 days
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	first = r.until(func(at float64) bool { return at < healthy.sum(ends) }, ends)
	return healthy, first, first
}

func failClock(t *testing.T) (healthy, first, second scrape) {
	r, pg := startFailing(t)
	healthy = r.until(func(resting float64) bool { return resting == 0 }, "purser_clock_deletion_resting")
	pg.exec("INSERT INTO auditlog (time, kind) VALUES (now() + interval '60 days', 'push_repo')") // the clock was 60 days ahead
	first = r.until(atLeast(1), "purser_clock_deletion_resting")
	return healthy, first, first
}

func failRedis(t *testing.T) (healthy, first, second scrape) {
	redis := startRedis(t)
	r := startRegistry(t, options{env: append(redis.env(), "PURSER_PULL_STATISTICS_REDIS_INTERVAL=1s")})
	healthy = r.until(atLeast(1), "purser_redis_up")
	redis.p.kill()
	first = r.until(func(up float64) bool { return up == 0 }, "purser_redis_up")
	return healthy, first, first
}

func failUsers(t *testing.T) (healthy, first, second scrape) {
	r, pg := startFailing(t, "PURSER_WEBHOOKS_ALLOW_PRIVATE=true")
	healthy = r.until(atLeast(0), "purser_hold_reporters")
	image, d, err := r.API().manifest(t.Context(), "acme/app", "v1")
	if err != nil {
		t.Fatal(err)
	}
	r.remote("quota", "set", "acme", "--tags", "1150")
	r.remote("webhook", "create", "acme", "--url", "http://"+freeAddr(t), "--events", "push")
	r.remote("report", "stdin", "prod", writeFile(t, "list", d.String()+"\n"), "--namespace", "acme", "--lease", "1h")
	if code, out := purser(t, []string{"PURSER_SERVER=" + r.URL()}, "report", "stdin", "other", writeFile(t, "other", "acme/app:none\n"), "--namespace", "acme"); code != 4 {
		t.Fatalf("a report of an image that isn't there exits with %d:\n%s", code, out)
	}
	for i := range 1149 {
		if _, err := r.API().putManifest(t.Context(), "acme/app", fmt.Sprintf("t%d", i), "application/vnd.oci.image.manifest.v1+json", image); err != nil {
			t.Fatal(err)
		}
	}
	pg.exec("UPDATE holdreporters SET reported_at = reported_at - interval '31 min', expires_at = expires_at - interval '31 min'") // time passes
	r.until(atLeast(1), `purser_hold_reporters{state="silent"`)
	r.until(atLeast(0.95), "purser_quota_used_ratio")
	r.until(atLeast(1), "purser_hold_unresolved_images")
	second = r.until(atLeast(1001), "purser_webhook_pending")
	return healthy, second, second
}
