package operate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/backup"
)

// examined runs the doctor and returns its findings.
func (g *garbage) examined(t *testing.T, environ ...string) (found []finding, code int) {
	t.Helper()
	code, stdout, stderr := purser(t, append(environ, g.environ...), "doctor", "-o", "json")
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("exit code %d: %v\n%s\n%s", code, err, stdout, stderr)
	}
	return r.Findings, code
}

// serious returns the findings that matter. Those about the test server are left out: it is fast
// and not safe.
func serious(found []finding) (list []finding) {
	server := []string{"max_connections", "fsync", "full_page_writes", "autovacuum"}
	for _, f := range found {
		if f.Level != levelNote && !slices.Contains(server, f.About) {
			list = append(list, f)
		}
	}
	return list
}

func wants(t *testing.T, found []finding, level, about, text string) {
	t.Helper()
	for _, f := range found {
		if f.Level == level && strings.Contains(f.About, about) && strings.Contains(f.Text, text) && f.Remedy != "" {
			return
		}
	}
	t.Errorf("no %s about %s that says %q in %+v", level, about, text, found)
}

// TestDoctorOfHealthy: of a registry that is well, the doctor finds nothing serious, and changes
// nothing.
func TestDoctorOfHealthy(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	found, _ := g.examined(t)
	for _, f := range serious(found) {
		if !strings.Contains(f.Text, "GiB left") { // the machine that runs the tests may be full
			t.Errorf("found %+v", f)
		}
	}
}

// TestDoctor: what endangers data or work is found, with what to do.
func TestDoctor(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	exec := func(sql string) {
		t.Helper()
		if _, err := g.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 20', current_database()); END $$`)
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5min''', current_database()); END $$`)
	exec(`INSERT INTO gc_blob_review_queue (digest, review_after, event, set_aside_at, last_error) VALUES ('\x01', now(), 'blob_upload', now(), 'no luck')`)
	exec(`INSERT INTO gc_blob_review_queue (digest, review_after, event) VALUES ('\x02', now() - interval '3 h', 'blob_upload')`)
	exec(`INSERT INTO gc_doomed_objects (storage_key, size, doomed_at, attempts, last_error, sweeping) VALUES ('a', 1, now() - interval '2 h', 3, 'permission denied', true)`)
	exec(`UPDATE blobs SET lost_at = now()`)
	exec(`INSERT INTO autoprunetaskstatus (namespace_id, status) SELECT id, 'failure: broken' FROM top_level_namespaces LIMIT 1
		ON CONFLICT (namespace_id) DO UPDATE SET status = EXCLUDED.status`)
	found, code := g.examined(t, "PURSER_HTTP_ADDR=0.0.0.0:5000", "PURSER_AUTH_ENABLED=false", "PURSER_HTTP_ALLOW_ANONYMOUS=true")
	if code != command.ExitFindings {
		t.Errorf("exit code %d", code)
	}
	wants(t, found, levelNote, "database.main: synchronous_commit", "Purser's set their own value instead, for otherwise a push that was acknowledged may be gone")
	wants(t, found, levelWarning, "deadlock_timeout", "it is 5m0s")
	wants(t, found, levelError, "auth.enabled", "0.0.0.0:5000")
	wants(t, found, levelWarning, "http.tls", "plain text")
	wants(t, found, levelWarning, "garbage collection", "failed too often")
	wants(t, found, levelWarning, "garbage collection", "overdue by 3h")
	wants(t, found, levelError, "the blob store", "permission denied")
	wants(t, found, levelError, "blobs", "has lost 2")
	wants(t, found, levelWarning, "auto-pruning", "failed in 1")

	// On loopback, it matters who else reaches the registry.
	found, _ = g.examined(t)
	wants(t, found, levelNote, "auth.enabled", "requests that come through a proxy are refused")
	proxied := []string{"PURSER_HTTP_EXTERNAL_URL=https://registry.example.com", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1"}
	found, _ = g.examined(t, proxied...)
	wants(t, found, levelNote, "auth.enabled", "by http.external_url, http.trusted_proxies")
	for _, open := range []string{"PURSER_AUTH_ENABLED=false", "PURSER_HTTP_ALLOW_ANONYMOUS=true"} {
		found, code = g.examined(t, append(proxied, open)...)
		wants(t, found, levelError, "auth.enabled", "everybody who reaches https://registry.example.com may push, delete and administer")
		if code != command.ExitFindings {
			t.Errorf("%s: exit code %d", open, code)
		}
	}

	// In a store that isn't the database's, and with an expired certificate.
	other := newGarbage(t)
	other.run("store", "adopt")
	cert, key := certificateFiles(t, time.Now().Add(-time.Hour))
	found, _ = g.examined(t, "PURSER_STORAGE_FILESYSTEM_PATH="+other.store, "PURSER_HTTP_TLS_CERT="+cert, "PURSER_HTTP_TLS_KEY="+key)
	wants(t, found, levelError, "the blob store at "+other.store, "isn't the database's")
	wants(t, found, levelError, "http.tls.cert", "expired")
	cert, key = certificateFiles(t, time.Now().Add(50*time.Hour))
	found, _ = g.examined(t, "PURSER_STORAGE_FILESYSTEM_PATH="+filepath.Join(t.TempDir(), "away"), "PURSER_HTTP_TLS_CERT="+cert, "PURSER_HTTP_TLS_KEY="+key)
	wants(t, found, levelError, "the blob store", "couldn't be examined")
	wants(t, found, levelWarning, "http.tls.cert", "expires in 2d")
	cert, key = certificateFiles(t, time.Now().Add(200*time.Hour))
	if err := os.Chmod(key, 0o644); err != nil { //nolint:gosec // of this test
		t.Fatal(err)
	}
	found, _ = g.examined(t, "PURSER_HTTP_TLS_CERT="+cert, "PURSER_HTTP_TLS_KEY="+key)
	wants(t, found, levelError, "http.tls.cert", "isn't valid before")
	wants(t, found, levelWarning, "http.tls.key", "each user of this machine")
}

// TestDoctorOfBackups: a registry without backups, backups that nobody has read, and old ones are found.
func TestDoctorOfBackups(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	about := func() (list []finding) {
		found, _ := g.examined(t)
		return slices.DeleteFunc(found, func(f finding) bool { return !strings.HasPrefix(f.About, "backups") })
	}
	if found := about(); len(found) > 0 {
		t.Errorf("of a registry of today: %+v", found)
	}
	g.exec("UPDATE blobs SET created_at = now() - interval '8 days'")
	wants(t, about(), levelNote, "backups", "has never been run")
	g.exec("INSERT INTO backups (place, backup, snapshot_at) VALUES ('/srv/backup', '20260101T000000.000Z', now() - interval '1 hour')")
	wants(t, about(), levelNote, "backups", "none was ever read as a whole")
	g.exec("UPDATE backups SET snapshot_at = now() - interval '3 days', verified_at = now() - interval '9 days'")
	found := about()
	wants(t, found, levelWarning, "backups", "the newest one is 3d")
	wants(t, found, levelWarning, "backups", "none was read as a whole and found intact for 9d")
	g.exec("UPDATE backups SET problem = 'an object is missing'")
	wants(t, about(), levelError, "backups in /srv/backup", "an object is missing")
	g.exec("UPDATE backups SET problem = $1", backup.ErrNotThere.Error()+": is its volume mounted?")
	away := slices.IndexFunc(about(), func(f finding) bool {
		return f.About == "backups in /srv/backup" && strings.Contains(f.Remedy, "--new-place") && !strings.Contains(f.Remedy, "--deep")
	})
	if away < 0 {
		t.Errorf("of a place that is away: %+v", about())
	}
	g.exec("UPDATE backups SET snapshot_at = now(), verified_at = now(), problem = ''")
	if found := about(); len(found) > 0 {
		t.Errorf("of fresh backups: %+v", found)
	}
}

// TestBelowTheReserve: on a disk with less left than pushes leave free, the doctor says what to do, and
// what it says works: garbage collection deletes.
func TestBelowTheReserve(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	const reserve = "PURSER_STORAGE_RESERVE=1000000GiB" // no disk has so much
	found, code := g.examined(t, reserve)
	wants(t, found, levelError, "storage.reserve", "pushes are refused")
	if code != command.ExitFindings {
		t.Errorf("doctor: exit code %d", code)
	}
	for _, f := range found {
		if f.About == "storage.reserve" && !strings.Contains(f.Remedy, `run "purser gc run"`) {
			t.Errorf("the doctor's advice is %q", f.Remedy)
		}
	}
	code, stdout, stderr := purser(t, append([]string{reserve}, g.environ...), "gc", "run")
	if code != 0 || strings.Contains(stdout, "Deleted 0 objects") || !strings.Contains(stdout, "Deleted ") {
		t.Errorf("gc run: exit code %d\n%s\n%s", code, stdout, stderr)
	}
}

// TestDoctorOfDefaultPolicy: the default policy of the configuration is judged as one that a client
// saves: by the tags of all namespaces, or alone while there is no database.
func TestDoctorOfDefaultPolicy(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	g.put("3", "v1.2.0")
	g.exec(`INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) SELECT gen_random_uuid()::text, id, '{"method":"number_of_tags","numTags":100}' FROM top_level_namespaces`)
	const about = "autoprune.default_policy"
	policy := `PURSER_AUTOPRUNE_DEFAULT_POLICY={"method": "creation_date", "olderThan": "6m", "tagPattern": "v"}`
	found, code := g.examined(t, policy)
	if code != command.ExitFindings {
		t.Errorf("exit code %d", code)
	}
	wants(t, found, levelWarning, about, "6m is 6 minutes")
	wants(t, found, levelWarning, about, "no anchors, so it is found anywhere in a name; write \"^(?:v)$\" to match whole names: library/app:v1")
	wants(t, found, levelNote, about, "is a release: library/app:v1.2.0")
	found, _ = g.examined(t, policy, "PURSER_DATABASE_MAIN=postgres://u:secret@127.0.0.1:1/db")
	wants(t, found, levelWarning, about, "6m is 6 minutes")
	found, _ = g.examined(t, `PURSER_AUTOPRUNE_DEFAULT_POLICY={"method": "number_of_tags", "numTags": 100}`)
	for _, f := range found {
		if f.About == about {
			t.Errorf("of a policy that is well, found %+v", f)
		}
	}

	// Other policies would delete what the stored policy keeps: of a configuration without it, and with
	// another one. An instance that doesn't prune changes nothing.
	g.exec(`UPDATE namespaceautoprunepolicy SET policy = '{"method":"number_of_tags","numTags":1}'`)
	g.exec(`INSERT INTO defaultautoprunepolicy (uuid, policy, setting) VALUES (gen_random_uuid()::text,
		'{"method":"creation_date","olderThan":"1y","keep":[{"tagPattern":"^v1$"}]}', true)`)
	const uncovers = "policies would delete 1 tag that they leave now: library/app:v1"
	found, _ = g.examined(t)
	wants(t, found, levelWarning, about, "without the policy, "+uncovers)
	found, _ = g.examined(t, `PURSER_AUTOPRUNE_DEFAULT_POLICY={"method": "creation_date", "olderThan": "1y"}`)
	wants(t, found, levelWarning, about, "without what the policy kept until now, "+uncovers)
	for _, environ := range []string{"PURSER_AUTOPRUNE_ENABLED=false", `PURSER_AUTOPRUNE_DEFAULT_POLICY={"method": "creation_date", "olderThan": "1y", "keep": [{"tagPattern": "^v1$"}]}`} {
		found, _ = g.examined(t, environ)
		for _, f := range found {
			if f.About == about && strings.Contains(f.Text, uncovers) {
				t.Errorf("with %s, found %+v", environ, f)
			}
		}
	}
}

// TestDoctorOfLastUse: a default policy by last use is found as long as no reporter is live where it
// applies.
func TestDoctorOfLastUse(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	g.exec(`INSERT INTO defaultautoprunepolicy (uuid, policy) VALUES (gen_random_uuid()::text, '{"method":"last_pulled","olderThan":"90d"}')`)
	found, _ := g.examined(t)
	wants(t, found, levelNote, "policies", "1 select by last use where no reporter is live, one of them in namespace library")
	g.exec("INSERT INTO holdreporters (name, lease, expires_at) VALUES ('prod', '1 hour', now() + interval '1 hour')")
	found, _ = g.examined(t)
	for _, f := range found {
		if f.About == "policies" {
			t.Errorf("although a reporter is live, found %+v", f)
		}
	}
}

// TestDoctorOfRefusedSettings: the doctor names settings with which Purser refuses to work, and
// looks no further.
func TestDoctorOfRefusedSettings(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	for _, sql := range []string{"default_transaction_read_only = on", "search_path = elsewhere", "lock_timeout = ''1ms''"} {
		g.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + sql + `', current_database()); END $$`)
	}
	found, code := g.examined(t)
	if code != command.ExitFindings {
		t.Errorf("exit code %d", code)
	}
	wants(t, found, levelError, "default_transaction_read_only", "imposes on on Purser's sessions, so nothing can be written")
	wants(t, found, levelError, "search_path", "imposes elsewhere")
	wants(t, found, levelNote, "lock_timeout", "Purser's set their own value")
	for _, f := range found {
		if strings.Contains(f.Text, "couldn't be examined") {
			t.Errorf("found %+v", f)
		}
	}
}

// TestDoctorGoesOn: what is away is named, once, and doesn't keep the doctor from the rest.
func TestDoctorGoesOn(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1"
	away := filepath.Join(t.TempDir(), "away")
	others := []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + away, "PURSER_REDIS_URL=redis://:secret@" + nobody, "PURSER_AUTH_ENABLED=true",
		"PURSER_AUTH_LDAP_URL=ldap://" + nobody, "PURSER_AUTH_LDAP_USER_BASE=dc=example", "PURSER_AUTH_OIDC_ISSUER=http://" + nobody, "PURSER_AUTH_OIDC_CLIENT_ID=purser",
		"PURSER_HTTP_TLS_CERT=" + away, "PURSER_HTTP_TLS_KEY=" + away}
	g := newGarbage(t)
	g.run("store", "adopt")
	for name, database := range map[string][]string{
		"the database is away":                {"PURSER_DATABASE_MAIN=postgres://u:secret@" + nobody + "/db"},
		"the statistics' database is away":    {"PURSER_DATABASE_STATS=postgres://u:secret@" + nobody + "/db"},
		"there is no cluster":                 {"PURSER_DATABASE_MAIN=", "PURSER_DATA_DIR=" + t.TempDir()},
		"the database is there, the rest not": {},
	} {
		t.Run(name, func(t *testing.T) {
			found, code := g.examined(t, append(database, others...)...)
			if code != command.ExitFindings {
				t.Errorf("exit code %d", code)
			}
			wants(t, found, levelError, "the blob store", away)
			wants(t, found, levelError, "the directory", "connecting")
			wants(t, found, levelError, "the OpenID Connect provider", "refused")
			wants(t, found, levelError, "the configuration", "http.tls.cert: ")
			about, text := "", nobody
			switch name {
			case "the database is away":
				about = "what its sessions inherit"
			case "the statistics' database is away":
				about = "the schema"
			case "there is no cluster":
				about, text = "the database", "PURSER_DATA_DIR"
			}
			if about != "" {
				wants(t, found, levelError, about, text)
			}
			if len(database) == 0 {
				wants(t, found, levelNote, "role purser", "superuser") // of the database
			}
			wants(t, found, levelError, map[bool]string{true: "pull statistics", false: "Redis"}[about == ""], nobody)
			seen := map[string]string{}
			for _, f := range found {
				if f.Level != levelError {
					continue
				}
				if other, twice := seen[f.Text]; twice {
					t.Errorf("%s and %s say the same: %s", other, f.About, f.Text)
				}
				seen[f.Text] = f.About
				if strings.Contains(f.Text, "secret") {
					t.Errorf("%s tells a password: %s", f.About, f.Text)
				}
			}
		})
	}
}

// TestDoctorOfSchema: of a schema that isn't this program's, the doctor says what to do, and looks at
// nothing that may be missing.
func TestDoctorOfSchema(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	if _, err := g.db.Pool.Exec(t.Context(), "DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)"); err != nil {
		t.Fatal(err)
	}
	found, _ := g.examined(t)
	wants(t, found, levelError, "schema", "older than this program needs")
	newer := newGarbage(t)
	if _, err := newer.db.Pool.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)"); err != nil {
		t.Fatal(err)
	}
	found, _ = newer.examined(t)
	wants(t, found, levelError, "schema", "newer than this version")
}

func TestDoctorWithoutFindings(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := writeReport(&out, report{Looked: []string{"a", "b"}}); err != nil {
		t.Fatal(err)
	}
	same(t, out.String(), "All is well.\nLooked at: a, b.\n")
	out.Reset()
	if err := writeReport(&out, report{Findings: []finding{{levelWarning, "http.tls", "plain", "set it"}}, Looked: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	same(t, out.String(), "warning  http.tls: plain\n         → set it\nLooked at: a.\n")
}

// certificateFiles writes a certificate that ends at a time, and its key.
func certificateFiles(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	certificate, private := selfSigned(t, end)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, content := range map[string][]byte{cert: certificate, key: private} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// selfSigned makes a certificate and its key, in PEM.
func selfSigned(t *testing.T, end time.Time) (certificate, private []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: end.Add(-100 * time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

// TestNewerSchemaIsRefused: no command of an older version works on a database that a newer version
// has migrated, since it could damage what it doesn't know.
func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	for _, sql := range []string{"INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)", "UPDATE settings SET value = 'of 99999' WHERE name = 'schema_hash'"} {
		if _, err := g.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"gc", "run"}, {"gc", "status"}, {"check", "--repair"}, {"store", "adopt"}, {"migrate", "up"}, {"loosefk", "run"}} {
		code, stdout, stderr := purser(t, g.environ, args...)
		if code != 1 || !strings.Contains(stderr, "99999") || !strings.Contains(stderr, "newer than this version of Purser") {
			t.Errorf("purser %s: exit code %d\n%s\n%s", strings.Join(args, " "), code, stdout, stderr)
		}
	}
	if text := g.run("migrate", "status"); !strings.Contains(text, "by a newer version of Purser") {
		t.Errorf("migrate status: %s", text)
	}
}
