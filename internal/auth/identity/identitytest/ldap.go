// Package identitytest starts directories and identity providers for tests.
package identitytest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-ldap/ldap/v3"
)

// The entries that every LDAP has from the start.
const (
	BaseDN   = "dc=example,dc=org"
	UserBase = "ou=people," + BaseDN // AddUser adds below it
	// GroupBase is the entry below which AddGroup adds.
	GroupBase = "ou=groups," + BaseDN
	// ServiceDN may search and read everything but passwords. No other account but the
	// directory's administrator may read anything.
	ServiceDN       = "cn=purser," + BaseDN
	ServicePassword = "service secret"

	adminDN       = "cn=admin," + BaseDN
	adminPassword = "admin secret"
)

// LDAP is an OpenLDAP server for one test. It has the overlays memberof and ppolicy, so
// entries of users have the attribute memberOf, and an account is locked by its attribute
// pwdAccountLockedTime.
type LDAP struct {
	URL    string // ldap://127.0.0.1:PORT; the server also accepts StartTLS
	TLSURL string // ldaps://127.0.0.1:PORT
	CAFile string // PEM file of the authority that signed the server's certificate

	withGUIDs    bool
	program, dir string
	cmd          *exec.Cmd     // nil: it isn't running
	exited       chan struct{} // closed when cmd has exited
}

// SLAPD returns the path of an installed OpenLDAP server. If none is installed, it skips the
// test, or fails the test in CI.
func SLAPD(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("slapd"); err == nil {
		return path
	}
	// Often only root's PATH has its directory.
	for _, path := range []string{"/usr/sbin/slapd", "/usr/libexec/slapd", "/usr/lib/openldap/slapd"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("slapd isn't installed: see tools/packages")
	}
	t.Skip("needs slapd: see tools/packages")
	return ""
}

// StartLDAP starts an OpenLDAP server with the entries BaseDN, UserBase, GroupBase and
// ServiceDN. It ends the server when the test ends. If OpenLDAP isn't installed, it skips or
// fails the test like SLAPD.
func StartLDAP(t testing.TB) *LDAP {
	t.Helper()
	return start(t, &LDAP{})
}

// StartWithGUIDs is StartLDAP for a server that tells the ids of entries as Active Directory does:
// nobody can read entryUUID, and users may have an objectGUID (AddUserWithGUID).
func StartWithGUIDs(t testing.TB) *LDAP {
	t.Helper()
	return start(t, &LDAP{withGUIDs: true})
}

func start(t testing.TB, s *LDAP) *LDAP {
	t.Helper()
	installed := SLAPD(t)
	s.dir = t.TempDir()
	// AppArmor keeps the installed program from reading files in unusual directories. Its
	// rules belong to the program's path, so they don't apply to a copy.
	program, err := os.ReadFile(installed)
	check(t, err)
	s.program = filepath.Join(s.dir, "slapd")
	check(t, os.WriteFile(s.program, program, 0o700)) //nolint:gosec // it is a program
	check(t, os.Mkdir(filepath.Join(s.dir, "data"), 0o700))
	s.CAFile = filepath.Join(s.dir, "ca.pem")
	writeCertificates(t, s.dir)
	check(t, os.WriteFile(filepath.Join(s.dir, "slapd.conf"), []byte(s.configuration(t)), 0o600))
	t.Cleanup(s.Stop)
	// Another process may take a free port before the server does, so there are some attempts.
	for attempt := 1; ; attempt++ {
		s.URL, s.TLSURL = "ldap://"+freeAddress(t), "ldaps://"+freeAddress(t)
		err := s.start()
		if err == nil {
			break
		}
		if attempt == 5 {
			t.Fatal(err)
		}
	}
	s.Add(t, BaseDN, "objectClass: dcObject", "objectClass: organization", "o: Example")
	s.Add(t, UserBase, "objectClass: organizationalUnit")
	s.Add(t, GroupBase, "objectClass: organizationalUnit")
	s.Add(t, ServiceDN, "objectClass: organizationalRole", "objectClass: simpleSecurityObject", "userPassword: "+ServicePassword)
	s.Add(t, "cn=policy,"+BaseDN, "objectClass: organizationalRole", "objectClass: pwdPolicy", "pwdAttribute: userPassword",
		"pwdLockout: TRUE", "pwdMaxFailure: 0", "pwdMustChange: TRUE")
	return s
}

// configuration returns the server's configuration file.
func (s *LDAP) configuration(t testing.TB) string {
	t.Helper()
	schemas := firstDirectory("/etc/ldap/schema", "/etc/openldap/schema")
	if schemas == "" {
		t.Fatal("the schemas of OpenLDAP aren't in /etc/ldap/schema")
	}
	var b strings.Builder
	for _, name := range []string{"core", "cosine", "inetorgperson", "nis"} {
		fmt.Fprintf(&b, "include %s/%s.schema\n", schemas, name)
	}
	uuids := ""
	if s.withGUIDs {
		uuids = "access to attrs=entryUUID by * none\n"
		b.WriteString(`
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
objectclass ( 1.3.6.1.4.1.32473.1 NAME 'hasGUID' SUP top AUXILIARY MAY objectGUID )
`)
	}
	// Without a directory of modules, they are part of the program.
	if modules := firstDirectory("/usr/lib/ldap", "/usr/lib64/openldap", "/usr/libexec/openldap", "/usr/lib/openldap"); modules != "" {
		fmt.Fprintf(&b, "modulepath %s\n", modules)
		for _, name := range []string{"back_mdb", "memberof", "ppolicy"} {
			if found, _ := filepath.Glob(filepath.Join(modules, name+".*")); len(found) > 0 {
				fmt.Fprintf(&b, "moduleload %s\n", name)
			}
		}
	}
	fmt.Fprintf(&b, `
TLSCACertificateFile %[1]s/ca.pem
TLSCertificateFile %[1]s/server.pem
TLSCertificateKeyFile %[1]s/server.key
database mdb
maxsize 16777216
dbnosync
directory %[1]s/data
suffix %[2]s
rootdn %[3]s
rootpw "%[4]s"
limits dn.exact="%[5]s" size.soft=500 size.hard=500 size.prtotal=unlimited
access to attrs=userPassword by anonymous auth by * none
%[6]saccess to * by dn.exact="%[5]s" read by anonymous auth by * none
overlay memberof
overlay ppolicy
ppolicy_default cn=policy,%[2]s
`, s.dir, BaseDN, adminDN, adminPassword, ServiceDN, uuids)
	return b.String()
}

// firstDirectory returns the first of the directories that exists, or "".
func firstDirectory(paths ...string) string {
	for _, path := range paths {
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			return path
		}
	}
	return ""
}

// freeAddress returns an address of loopback with a port that nobody uses at the moment.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().String()
}

// Start starts a stopped server again, with its data and on the same ports.
func (s *LDAP) Start(t testing.TB) {
	t.Helper()
	check(t, s.start())
}

// start starts the server and returns when it answers.
func (s *LDAP) start() error {
	var output bytes.Buffer
	s.cmd = exec.Command(s.program, "-f", filepath.Join(s.dir, "slapd.conf"), "-h", s.URL+" "+s.TLSURL, "-d", "0")
	s.cmd.Stdout, s.cmd.Stderr = &output, &output
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	exited := make(chan struct{})
	go func(cmd *exec.Cmd) {
		cmd.Wait() //nolint:errcheck // Stop ends it by a signal
		close(exited)
	}(s.cmd)
	s.exited = exited
	for deadline := time.Now().Add(30 * time.Second); !s.answers(); {
		select {
		case <-exited:
			s.cmd = nil
			return fmt.Errorf("slapd ended: %s", output.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return errors.New("slapd doesn't answer")
		}
	}
	return nil
}

// answers says whether the administrator can log in.
func (s *LDAP) answers() bool {
	conn, err := s.admin()
	if err != nil {
		return false
	}
	conn.Close() //nolint:errcheck // it has answered
	return true
}

// admin connects as the directory's administrator.
func (s *LDAP) admin() (*ldap.Conn, error) {
	conn, err := ldap.DialURL(s.URL, ldap.DialWithDialer(&net.Dialer{Timeout: time.Second}))
	if err != nil {
		return nil, err
	}
	conn.SetTimeout(10 * time.Second)
	if err := conn.Bind(adminDN, adminPassword); err != nil {
		conn.Close() //nolint:errcheck // the bind's error matters
		return nil, err
	}
	return conn, nil
}

// Stop kills the server's process.
func (s *LDAP) Stop() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-s.exited
	s.cmd = nil
}

// Pause stops the server's process from running until Resume. The system still accepts
// connections for it, but nobody answers.
func (s *LDAP) Pause(t testing.TB) {
	t.Helper()
	check(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	for deadline := time.Now().Add(time.Minute); !isStopped(s.cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("slapd doesn't stop")
		}
	}
}

// isStopped says whether all threads of a process are stopped. On a busy machine a thread goes on
// for a while after the signal. Where /proc doesn't tell the states, isStopped returns true.
func isStopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, path := range tasks {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		// The state follows the name, which stands in parentheses.
		if _, state, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " "); ok && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// Resume lets a paused server run again.
func (s *LDAP) Resume(t testing.TB) {
	t.Helper()
	check(t, s.cmd.Process.Signal(syscall.SIGCONT))
}

// Add adds an entry. Each attribute is a line of the form "name: value".
func (s *LDAP) Add(t testing.TB, dn string, attributes ...string) {
	t.Helper()
	values := map[string][]string{}
	for _, a := range attributes {
		name, value, ok := strings.Cut(a, ": ")
		if !ok {
			t.Fatalf("%q isn't an attribute with a value", a)
		}
		values[name] = append(values[name], value)
	}
	// The attribute that names the entry must be in it.
	parsed, err := ldap.ParseDN(dn)
	check(t, err)
	for _, a := range parsed.RDNs[0].Attributes {
		if _, ok := values[a.Type]; !ok {
			values[a.Type] = []string{a.Value}
		}
	}
	r := ldap.NewAddRequest(dn, nil)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		r.Attribute(name, values[name])
	}
	s.change(t, dn, func(conn *ldap.Conn) error { return conn.Add(r) })
}

// Set replaces the values of an entry's attribute. Without values it deletes the attribute.
func (s *LDAP) Set(t testing.TB, dn, attribute string, values ...string) {
	t.Helper()
	r := ldap.NewModifyRequest(dn, nil)
	r.Replace(attribute, values)
	s.change(t, dn, func(conn *ldap.Conn) error { return conn.Modify(r) })
}

// Rename gives an entry another first part of its DN, and another parent. The entry loses the value
// that its DN had before. It returns the new DN.
func (s *LDAP) Rename(t testing.TB, dn, first, parent string) string {
	t.Helper()
	s.change(t, dn, func(conn *ldap.Conn) error { return conn.ModifyDN(ldap.NewModifyDNRequest(dn, first, true, parent)) })
	return first + "," + parent
}

// Delete deletes an entry.
func (s *LDAP) Delete(t testing.TB, dn string) {
	t.Helper()
	s.change(t, dn, func(conn *ldap.Conn) error { return conn.Del(ldap.NewDelRequest(dn, nil)) })
}

func (s *LDAP) change(t testing.TB, dn string, fn func(*ldap.Conn) error) {
	t.Helper()
	conn, err := s.admin()
	check(t, err)
	defer conn.Close()
	if err := fn(conn); err != nil {
		t.Fatalf("changing %s: %v", dn, err)
	}
}

// AddUser adds a user with the attributes uid, cn, sn, mail and userPassword below UserBase,
// and returns the user's DN. The address in mail is name@example.org.
func (s *LDAP) AddUser(t testing.TB, name, password string) (dn string) {
	t.Helper()
	dn = "uid=" + ldap.EscapeDN(name) + "," + UserBase
	s.Add(t, dn, "objectClass: inetOrgPerson", "uid: "+name, "cn: "+name, "sn: "+name, "mail: "+name+"@example.org",
		"userPassword: "+password)
	return dn
}

// AddUserWithGUID is AddUser for a server of StartWithGUIDs. The user's objectGUID has the 16 bytes
// of guid.
func (s *LDAP) AddUserWithGUID(t testing.TB, name, password, guid string) (dn string) {
	t.Helper()
	dn = s.AddUser(t, name, password)
	s.Set(t, dn, "objectClass", "inetOrgPerson", "hasGUID")
	s.Set(t, dn, "objectGUID", guid)
	return dn
}

// AddGroup adds a groupOfNames below GroupBase and returns its DN. A group needs a member.
func (s *LDAP) AddGroup(t testing.TB, name string, members ...string) (dn string) {
	t.Helper()
	dn = "cn=" + ldap.EscapeDN(name) + "," + GroupBase
	attributes := []string{"objectClass: groupOfNames", "cn: " + name}
	for _, m := range members {
		attributes = append(attributes, "member: "+m)
	}
	s.Add(t, dn, attributes...)
	return dn
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
