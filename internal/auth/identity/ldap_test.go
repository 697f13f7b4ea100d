package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
)

// options returns the options for a test's server, over TLS.
func options(s *identitytest.LDAP) DirectoryOptions {
	return DirectoryOptions{
		URL: s.TLSURL, CAFile: s.CAFile, BindDN: identitytest.ServiceDN, BindPassword: identitytest.ServicePassword,
		UserBase: identitytest.UserBase, GroupBase: identitytest.GroupBase, Timeout: 20 * time.Second,
	}
}

func openDirectory(t *testing.T, o DirectoryOptions) *Directory {
	t.Helper()
	d, err := NewDirectory(o)
	must(t, err)
	t.Cleanup(d.Close)
	return d
}

// wantRefused fails the test unless a log-in is refused, for a reason that contains the text.
func wantRefused(t *testing.T, d *Directory, name, password, reason string) {
	t.Helper()
	id, err := d.Login(t.Context(), name, password)
	if !errors.Is(err, ErrRefused) || errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), reason) {
		t.Errorf("log-in of %q: %+v, %v; want a refusal because of %q", name, id, err, reason)
	}
	if password != "" && strings.Contains(fmt.Sprint(err), password) {
		t.Errorf("the error has the password: %v", err)
	}
}

func wantUnavailable(t *testing.T, d *Directory, reason string) {
	t.Helper()
	_, err := d.Login(t.Context(), "alice", "correct horse")
	if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), reason) {
		t.Errorf("log-in: %v; want that the directory is unavailable because of %q", err, reason)
	}
}

var entryUUIDForm = regexp.MustCompile(`^entryuuid=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// TestGroupNameIsNoDN: whoever may make a group can give it the DN of another one as name. That must
// make nobody a member of the other.
func TestGroupNameIsNoDN(t *testing.T) {
	t.Parallel()
	i := Identity{Source: SourceLDAP, Groups: []string{"Devs", "cn=admins,ou=groups,dc=example,dc=org"}, GroupDNs: []string{"cn=x,dc=y"}}
	if keys := i.GroupKeys(); !slices.Equal(keys, []string{"cn=x,dc=y", "devs"}) {
		t.Errorf("the keys are %q", keys)
	}
}

// TestUnknownGroupsAreLogged: groups of the configuration in which nobody ever was are logged, once:
// at a refusal if nobody could log in yet, else after some people.
func TestUnknownGroupsAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := newGroupWatch(slog.New(slog.NewTextHandler(&log, nil)), "auth.ldap.", []string{"staff"}, []string{"admins"})
	w.met(Identity{Source: SourceLDAP, Subject: "a", Groups: []string{"Stuff"}}, true)
	w.met(Identity{Source: SourceLDAP, Subject: "b", Groups: []string{"Stuff"}}, true)
	for _, want := range []string{"setting=auth.ldap.required_groups group=staff people=0 groups_of_the_last=Stuff", "setting=auth.ldap.admin_groups group=admins"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log doesn't say %q once:\n%s", want, &log)
		}
	}
	log.Reset()
	w = newGroupWatch(slog.New(slog.NewTextHandler(&log, nil)), "auth.ldap.", []string{"staff"}, []string{"admins"})
	for n := range watchAfter - 1 {
		if log.Len() > 0 {
			t.Errorf("after %d people: %s", n, &log)
		}
		w.met(Identity{Source: SourceLDAP, Subject: "a", Groups: []string{"STAFF"}}, false) // the same person again
		w.met(Identity{Source: SourceLDAP, Subject: strconv.Itoa(n), Groups: []string{"STAFF"}}, false)
		w.met(Identity{Source: SourceLDAP, Subject: "other"}, true)
	}
	if strings.Contains(log.String(), "staff") || strings.Count(log.String(), "group=admins") != 1 {
		t.Errorf("the log says\n%s", &log)
	}
}

func TestLDAPLogin(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	alice := s.AddUser(t, "alice", "correct horse")
	bob := s.AddUser(t, "bob", "battery staple")
	s.AddGroup(t, "developers", alice, bob)
	s.AddGroup(t, "Admins", alice)
	s.AddGroup(t, "others", bob)
	want := Identity{Source: SourceLDAP, Subject: alice, Name: "alice", Email: "alice@example.org", Groups: []string{"Admins", "developers"}, Superuser: true}

	plain := func(o *DirectoryOptions) { o.URL, o.CAFile = s.URL, "" }
	for name, change := range map[string]func(*DirectoryOptions){
		"ldaps":    func(*DirectoryOptions) {},
		"StartTLS": func(o *DirectoryOptions) { o.URL, o.StartTLS = s.URL, true },
		"plain":    plain,
		"memberOf": func(o *DirectoryOptions) { o.MemberOfAttribute = "memberOf" },
		"required": func(o *DirectoryOptions) { o.RequiredGroups = []string{"elsewhere", "Developers"} },
		"a DN": func(o *DirectoryOptions) {
			o.RequiredGroups = []string{"elsewhere", "CN=developers", " OU=Groups", "DC=example", "dc=org"}
			o.AdminGroups = []string{"cn=Admins, ou=groups,dc=example,dc=org"}
		},
		"a DN in memberOf": func(o *DirectoryOptions) {
			o.MemberOfAttribute, o.AdminGroups = "memberOf", []string{"CN=ADMINS,OU=GROUPS,DC=EXAMPLE,DC=ORG"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(s)
			o.AdminGroups = []string{"ADMINS"} // groups are compared without regard to case
			change(&o)
			d := openDirectory(t, o)
			for _, as := range []string{"alice", "ALICE"} { // attributes such as uid ignore case
				id, err := d.Login(t.Context(), as, "correct horse")
				id.PasswordChanged = "" // the server's time
				if !entryUUIDForm.MatchString(id.EntryID) || !slices.Equal(id.GroupDNs, []string{"cn=admins," + identitytest.GroupBase, "cn=developers," + identitytest.GroupBase}) {
					t.Errorf("%s: the entry's id is %q, the groups are %q", as, id.EntryID, id.GroupDNs)
				}
				id.EntryID, id.GroupDNs = "", nil
				if err != nil || !reflect.DeepEqual(id, want) {
					t.Errorf("%s: %+v, %v; want %+v", as, id, err, want)
				}
			}
			id, err := d.Login(t.Context(), "bob", "battery staple")
			if err != nil || id.Superuser || id.Subject != bob || !reflect.DeepEqual(id.Groups, []string{"developers", "others"}) {
				t.Errorf("bob: %+v, %v", id, err)
			}
			wantRefused(t, d, "alice", "battery staple", "Invalid Credentials")
			wantRefused(t, d, "carol", "battery staple", "no entry")
			wantRefused(t, d, "alice", "", "empty")
		})
	}
	t.Run("names below other options", func(t *testing.T) {
		t.Parallel()
		o := options(s)
		o.UserFilter, o.NameAttribute, o.GroupBase = "(&(objectClass=inetOrgPerson)(mail=%s))", "mail", ""
		id, err := openDirectory(t, o).Login(t.Context(), "bob@example.org", "battery staple")
		if err != nil || id.Name != "bob@example.org" || id.Subject != bob || id.Groups != nil {
			t.Errorf("%+v, %v", id, err)
		}
	})
	t.Run("not in the required groups", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		o := options(s)
		o.Log, o.RequiredGroups = slog.New(slog.NewTextHandler(&log, nil)), []string{"Admins"}
		d := openDirectory(t, o)
		defer func() {
			if want := "setting=auth.ldap.required_groups group=admins people=0 groups_of_the_last=\"developers, others\""; strings.Count(log.String(), want) != 1 {
				t.Errorf("the log doesn't say %s once:\n%s", want, &log)
			}
		}()
		wantRefused(t, d, "bob", "battery staple", "none of the required groups")
		wantRefused(t, d, "bob", "correct horse", "Invalid Credentials")
	})
}

// TestLDAPInjection enters names that would match alice's entry if they weren't escaped.
func TestLDAPInjection(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddUser(t, "alice", "correct horse")
	star := s.AddUser(t, "st*r", "correct horse")
	d := openDirectory(t, options(s))
	for _, name := range []string{
		"*", "a*", "alice)", ")(uid=*", "alice)(|(uid=*", "*)(uid=*))(|(uid=*", `\2a`, `alice\00`, "(|(uid=alice))",
		"alice\x00", "alice\x00)", " alice", "alice ", "alice\t", "al\u00adice", "ａｌｉｃｅ", "\xff", "", strings.Repeat("a", 257),
	} {
		wantRefused(t, d, name, "correct horse", "")
	}
	// The star is found as itself. It can't be an account's name, though.
	wantRefused(t, d, "st*r", "correct horse", "can't be an account's name")

	// The group's filter gets the DN and the name escaped.
	got := groupFilter("(|(member=%s)(memberUid=%n))", star+")(cn=*", "%s*)")
	want := `(|(member=uid=st\2ar,` + identitytest.UserBase + `\29\28cn=\2a)(memberUid=%s\2a\29))`
	if got != want {
		t.Errorf("the filter of groups is %s, want %s", got, want)
	}
}

func TestLDAPEntriesThatMayNotLogIn(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	alice := s.AddUser(t, "alice", "correct horse")
	d := openDirectory(t, options(s))
	login := func(want bool, why string) {
		t.Helper()
		_, err := d.Login(t.Context(), "alice", "correct horse")
		if want && err != nil || !want && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", why, err)
		}
	}
	login(true, "as it is")
	s.Set(t, alice, "pwdAccountLockedTime", "000001010000Z")
	login(false, "locked for ever")
	s.Set(t, alice, "pwdAccountLockedTime")
	login(true, "unlocked")
	s.Set(t, alice, "pwdReset", "TRUE")
	wantRefused(t, d, "alice", "correct horse", "policy")
	s.Set(t, alice, "pwdReset")
	s.Set(t, alice, "userPassword")
	login(false, "without a password")
	s.Set(t, alice, "userPassword", "correct horse")
	s.Set(t, alice, "pwdReset") // the policy has set it

	// Two users, and then three, have the name.
	other := "cn=other," + identitytest.UserBase
	s.Add(t, other, "objectClass: inetOrgPerson", "sn: other", "uid: alice", "userPassword: correct horse")
	wantRefused(t, d, "alice", "correct horse", "several entries")
	s.Add(t, "cn=third,"+identitytest.UserBase, "objectClass: inetOrgPerson", "sn: third", "uid: alice", "userPassword: correct horse")
	wantRefused(t, d, "alice", "correct horse", "several entries")
	s.Delete(t, other)
	s.Delete(t, "cn=third,"+identitytest.UserBase)
	login(true, "once more the only one")
	s.Delete(t, alice)
	login(false, "deleted")
}

// TestLDAPNames checks which of several values is the name, and that groups elsewhere don't
// count.
func TestLDAPNames(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	carol := "cn=Carol," + identitytest.UserBase
	s.Add(t, carol, "objectClass: inetOrgPerson", "sn: c", "uid: Zed", "uid: carol", "userPassword: correct horse")
	dave := s.AddUser(t, "dave", "correct horse")
	s.Set(t, dave, "uid", "aaron", "dave")
	s.Add(t, "ou=foreign,"+identitytest.BaseDN, "objectClass: organizationalUnit")
	s.Add(t, "cn=admins,ou=foreign,"+identitytest.BaseDN, "objectClass: groupOfNames", "member: "+carol)
	s.AddGroup(t, "real, group", carol)
	for _, attribute := range []string{"", "memberOf"} {
		o := options(s)
		o.MemberOfAttribute, o.AdminGroups = attribute, []string{"admins"}
		d := openDirectory(t, o)
		id, err := d.Login(t.Context(), "carol", "correct horse")
		if want := []string{"real, group"}; err != nil || id.Name != "zed" || id.Superuser || !reflect.DeepEqual(id.Groups, want) || id.Subject != carol {
			t.Errorf("%q: %+v, %v", attribute, id, err)
		}
		if id, err = d.Login(t.Context(), "aaron", "correct horse"); err != nil || id.Name != "dave" {
			t.Errorf("%q: %+v, %v", attribute, id, err)
		}
	}
}

// TestLDAPGroupPages reads more groups than one answer has.
func TestLDAPGroupPages(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	alice := s.AddUser(t, "alice", "correct horse")
	for i := range groupPage + 20 {
		s.AddGroup(t, fmt.Sprint("group", i), alice)
	}
	id, err := openDirectory(t, options(s)).Login(t.Context(), "alice", "correct horse")
	if err != nil || len(id.Groups) != groupPage+20 {
		t.Errorf("%d groups, %v; want %d", len(id.Groups), err, groupPage+20)
	}
}

func TestLDAPUnavailable(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddUser(t, "alice", "correct horse")
	change := func(fn func(*DirectoryOptions)) *Directory {
		o := options(s)
		fn(&o)
		return openDirectory(t, o)
	}
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.BindPassword = "wrong" }), "as the service account")
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.CAFile = "" }), "certificate")
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.URL, o.StartTLS, o.CAFile = s.URL, true, "" }), "starting TLS")
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.UserBase = "ou=nowhere," + identitytest.BaseDN }), "searching the user")
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.GroupBase = "ou=nowhere," + identitytest.BaseDN }), "groups")
	// The directory lets only the service account search.
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.BindDN, o.BindPassword = "", "" }), "searching the user")

	// Users below a referral are on another server. A referral among users is ignored.
	elsewhere := "ou=elsewhere," + identitytest.UserBase
	s.Add(t, elsewhere, "objectClass: referral", "objectClass: extensibleObject", "ref: ldap://127.0.0.1:1/"+elsewhere)
	wantUnavailable(t, change(func(o *DirectoryOptions) { o.UserBase = elsewhere }), "refers to another server")
	d := openDirectory(t, options(s))
	if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
		t.Error(err)
	}

	// d has an idle connection of the old process.
	s.Stop()
	wantUnavailable(t, d, "connect")
	s.Start(t)
	if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
		t.Errorf("after the directory came back: %v", err)
	}
	s.Stop()
	s.Start(t)
	if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
		t.Errorf("on a connection that the directory has closed: %v", err)
	}
}

// TestLDAPSlow checks that a log-in at a directory that doesn't answer ends in time, on idle and
// on new connections, and while it waits for other log-ins.
func TestLDAPSlow(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddUser(t, "alice", "correct horse")
	for _, change := range []func(*DirectoryOptions){
		func(*DirectoryOptions) {},
		func(o *DirectoryOptions) { o.URL, o.StartTLS = s.URL, true },
		func(o *DirectoryOptions) { o.URL, o.CAFile = s.URL, "" },
	} {
		o := options(s)
		o.MaxConns = 2 // one log-in
		change(&o)
		d := openDirectory(t, o)
		if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
			t.Fatal(err)
		}
		d.opt.Timeout = 300 * time.Millisecond
		s.Pause(t)
		start := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { wantTimeout(t, d) })
		}
		all.Wait()
		wantTimeout(t, d) // on a new connection
		if took := time.Since(start); took > time.Minute {
			t.Errorf("the log-ins took %s", took)
		}
		d.opt.Timeout = 20 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := d.Login(ctx, "alice", "correct horse"); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("after its client has gone: %v", err)
		}
		s.Resume(t)
		if _, err := d.Login(t.Context(), "alice", "correct horse"); err != nil {
			t.Errorf("after the directory answers again: %v", err)
		}
	}
}

func wantTimeout(t *testing.T, d *Directory) {
	t.Helper()
	_, err := d.Login(t.Context(), "alice", "correct horse")
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() || !errors.Is(err, ErrUnavailable) {
		t.Errorf("log-in: %v; want that the directory is unavailable because of a timeout", err)
	}
}

func TestDirectoryOptions(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must(t, os.WriteFile(empty, nil, 0o600))
	for _, tt := range []struct {
		change func(*DirectoryOptions)
		want   string // part of the error, "" for none
	}{
		{func(*DirectoryOptions) {}, ""},
		{func(o *DirectoryOptions) { o.URL = "ldap://directory.example" }, "wouldn't be encrypted"},
		{func(o *DirectoryOptions) { o.URL = "ldap://10.0.0.1:389" }, "wouldn't be encrypted"},
		{func(o *DirectoryOptions) { o.URL = "ldap://127.0.0.1.example" }, "wouldn't be encrypted"},
		{func(o *DirectoryOptions) { o.URL, o.AllowPlain = "ldap://directory.example", true }, ""},
		{func(o *DirectoryOptions) { o.URL, o.StartTLS = "ldap://directory.example", true }, ""},
		{func(o *DirectoryOptions) { o.URL = "ldap://[::1]:1389/" }, ""},
		{func(o *DirectoryOptions) { o.URL = "ldap://localhost" }, ""},
		{func(o *DirectoryOptions) { o.StartTLS = true }, "from the beginning"},
		{func(o *DirectoryOptions) { o.URL, o.CAFile = "ldap://localhost", empty }, "aren't encrypted"},
		{func(o *DirectoryOptions) { o.CAFile = empty }, "no certificate in PEM format"},
		{func(o *DirectoryOptions) { o.CAFile = empty + ".missing" }, "reading the file"},
		{func(o *DirectoryOptions) { o.URL = "https://directory.example" }, "should be ldaps://"},
		{func(o *DirectoryOptions) { o.URL = "ldaps://cn=x:secret@directory.example" }, "should be ldaps://"},
		{func(o *DirectoryOptions) { o.URL = "ldaps://directory.example/dc=x??sub" }, "should be ldaps://"},
		{func(o *DirectoryOptions) { o.URL = "" }, "should be ldaps://"},
		{func(o *DirectoryOptions) { o.BindPassword = "" }, "service account"},
		{func(o *DirectoryOptions) { o.BindDN = "" }, "service account"},
		{func(o *DirectoryOptions) { o.BindDN = "purser" }, "isn't a DN"},
		{func(o *DirectoryOptions) { o.UserBase = "" }, "is required"},
		{func(o *DirectoryOptions) { o.UserFilter = "(uid=alice)" }, "should have %s"},
		{func(o *DirectoryOptions) { o.UserFilter = "(uid=%s" }, "isn't a filter"},
		{func(o *DirectoryOptions) { o.GroupFilter = "(member=alice)" }, "should have %s"},
		{func(o *DirectoryOptions) { o.GroupFilter = "memberUid=%n)" }, "isn't a filter"},
		{func(o *DirectoryOptions) { o.RequiredGroups = []string{"x"} }, "entry that has the groups"},
		{func(o *DirectoryOptions) { o.MaxConns = 1 }, "connections"},
		{func(o *DirectoryOptions) { o.Timeout = -1 }, "timeout"},
	} {
		o := DirectoryOptions{URL: "ldaps://directory.example", BindDN: "cn=purser,dc=example", BindPassword: "hidden", UserBase: "dc=example"}
		tt.change(&o)
		_, err := NewDirectory(o)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", o, err, tt.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("the error has a password: %v", err)
		}
	}
}

// scripted starts a directory. For each request, `answer` gets the message's id and the first byte of
// its operation, and writes what the directory sends. It returns the directory's URL.
func scripted(t *testing.T, answer func(conn net.Conn, id string, operation byte) error) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				for {
					var head [2]byte
					if _, err := io.ReadFull(conn, head[:]); err != nil {
						return
					}
					length := int(head[1])
					if length > 127 { // the length is in the following bytes
						long := make([]byte, length-128)
						io.ReadFull(conn, long) //nolint:errcheck // the next read fails too
						length = 0
						for _, b := range long {
							length = length<<8 | int(b)
						}
					}
					body := make([]byte, length)
					if _, err := io.ReadFull(conn, body); err != nil {
						return
					}
					if err := answer(conn, string(body[2:3]), body[3]); err != nil {
						return
					}
				}
			})
		}
	})
	return "ldap://" + l.Addr().String()
}

// First bytes of operations.
const bindRequest, searchRequest = 0x60, 0x63

// accepted is the answer to a bind, and found the one to a search, with the given entries in BER.
func accepted(id string) string {
	return "\x30\x0c\x02\x01" + id + "\x61\x07\x0a\x01\x00\x04\x00\x04\x00"
}

func found(id, entries string) (answer string) {
	for e := range strings.SplitSeq(entries, "|") {
		if e != "" {
			answer += "\x30" + string(rune(len(e)+3)) + "\x02\x01" + id + e
		}
	}
	return answer + "\x30\x0c\x02\x01" + id + "\x65\x07\x0a\x01\x00\x04\x00\x04\x00"
}

// credulous starts a directory that accepts every bind, and answers each search with the given
// entries. It returns its URL and the number of binds.
func credulous(t *testing.T, entries string) (url string, binds *atomic.Int32) {
	t.Helper()
	binds = new(atomic.Int32)
	return scripted(t, func(conn net.Conn, id string, operation byte) (err error) {
		switch operation {
		case bindRequest:
			binds.Add(1)
			_, err = io.WriteString(conn, accepted(id))
		case searchRequest:
			_, err = io.WriteString(conn, found(id, entries))
		}
		return err
	}), binds
}

// flood writes a text again and again until the client closes the connection, or to 32 MiB. It returns how
// many bytes it has written, some of which the client never got.
func flood(conn net.Conn, begin, text string) (written int, err error) {
	written, err = io.WriteString(conn, begin)
	text = strings.Repeat(text, 64<<10/len(text))
	for err == nil && written < 32<<20 {
		var n int
		n, err = io.WriteString(conn, text)
		written += n
	}
	return written, err
}

// TestLDAPAnswersWithoutEnd: a directory answers one of the requests of a log-in, or sends something
// unasked, without an end. The connection is closed, and the log-in fails.
func TestLDAPAnswersWithoutEnd(t *testing.T) {
	t.Parallel()
	const entry = "\x64\x1b\x04\x04cn=a\x30\x13\x30\x11\x04\x03uid\x31\x0a\x04\x01a\x04\x05alice"
	// The beginning of a message with a text of 512 MiB.
	long := func(id, operation string) string {
		return "\x30\x84\x7f\x00\x00\x00\x02\x01" + id + operation + "\x84\x70\x00\x00\x00\x04\x84\x20\x00\x00\x00"
	}
	// An entry whose DN has 16,384 bytes.
	group := func(id string) string {
		return "\x30\x82\x40\x0d\x02\x01" + id + "\x64\x82\x40\x06\x04\x82\x40\x00" + strings.Repeat("a", 0x4000) + "\x30\x00"
	}
	for name, c := range map[string]struct {
		operation   byte
		nth         int32 // request of this kind
		begin, text func(id string) string
		want        string
	}{
		"the service's bind": {bindRequest, 1, func(id string) string { return long(id, "\x61") }, func(string) string { return "a" }, "as the service account"},
		"the user's entry":   {searchRequest, 1, func(id string) string { return long(id, "\x64") }, func(string) string { return "a" }, "searching the user:"},
		"the user's bind":    {bindRequest, 2, func(id string) string { return long(id, "\x61") }, func(string) string { return "a" }, "checking the password"},
		"groups":             {searchRequest, 2, func(string) string { return "" }, group, "the user's groups"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var binds, searches atomic.Int32
			written := make(chan int, 1)
			url := scripted(t, func(conn net.Conn, id string, operation byte) error {
				n, answer := binds.Add, accepted(id)
				if operation == searchRequest {
					n, answer = searches.Add, found(id, entry)
				}
				if (operation == bindRequest || operation == searchRequest) && n(1) == c.nth && operation == c.operation {
					n, err := flood(conn, c.begin(id), c.text(id))
					written <- n
					return err
				}
				_, err := io.WriteString(conn, answer)
				return err
			})
			d := openDirectory(t, DirectoryOptions{URL: url, BindDN: "cn=x", BindPassword: "x", UserBase: "dc=x", GroupBase: "dc=x", Timeout: time.Minute})
			_, err := d.Login(t.Context(), "a", "anything")
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(fmt.Sprint(err), c.want) || !strings.Contains(fmt.Sprint(err), "has sent more than 4194304 bytes") {
				t.Errorf("log-in: %v", err)
			}
			if n := <-written; n >= 32<<20 {
				t.Errorf("the directory has sent %d bytes", n)
			}
		})
	}
	t.Run("unasked", func(t *testing.T) {
		t.Parallel()
		idle := make(chan net.Conn, 10)
		url := scripted(t, func(conn net.Conn, id string, operation byte) (err error) {
			switch operation {
			case bindRequest:
				_, err = io.WriteString(conn, accepted(id))
			case searchRequest:
				idle <- conn
				_, err = io.WriteString(conn, found(id, entry))
			}
			return err
		})
		d := openDirectory(t, DirectoryOptions{URL: url, BindDN: "cn=x", BindPassword: "x", UserBase: "dc=x", Timeout: time.Minute})
		for range 2 {
			if _, err := d.Login(t.Context(), "a", "anything"); err != nil {
				t.Fatal(err)
			}
			if n, err := flood(<-idle, "", accepted("\x7f")); err == nil {
				t.Errorf("the directory has sent %d bytes on an idle connection", n)
			}
		}
	})
}

// TestLDAPBindThatProvesNothing logs in at a directory that accepts every bind: the name must
// belong to exactly one entry, which has a DN. Else the accepted bind isn't one with the client's
// password.
func TestLDAPBindThatProvesNothing(t *testing.T) {
	t.Parallel()
	const entry = "\x64\x1b\x04\x04cn=a\x30\x13\x30\x11\x04\x03uid\x31\x0a\x04\x01a\x04\x05alice"
	const nameless = "\x64\x17\x04\x00\x30\x13\x30\x11\x04\x03uid\x31\x0a\x04\x01a\x04\x05alice"
	for _, tt := range []struct {
		entries string
		want    error
		binds   int32 // one is the service account's
	}{
		{entry, nil, 2},
		{"", ErrRefused, 2}, // an unknown name costs a bind too
		{nameless, ErrRefused, 2},
		{entry + "|" + entry, ErrRefused, 2},
		{entry + "|" + entry + "|" + entry, ErrRefused, 2}, // the directory ignores the limit
		{"\x64\x02\x30\x00", ErrUnavailable, 1},            // malformed
	} {
		url, binds := credulous(t, tt.entries)
		d := openDirectory(t, DirectoryOptions{URL: url, BindDN: "cn=x", BindPassword: "x", UserBase: "dc=x"})
		id, err := d.Login(t.Context(), "a", "anything")
		if tt.want == nil && (err != nil || id.Name != "a") || !errors.Is(err, tt.want) {
			t.Errorf("%q: %+v, %v; want %v", tt.entries, id, err, tt.want)
		}
		if got := binds.Load(); got != tt.binds {
			t.Errorf("%q: %d binds, want %d", tt.entries, got, tt.binds)
		}
		if !errors.Is(tt.want, ErrUnavailable) {
			wantRefused(t, d, "a", "", "empty")
		} else if _, err := d.Login(t.Context(), "a", ""); !errors.Is(err, ErrUnavailable) { // as for any password
			t.Errorf("%q: %v for an empty password", tt.entries, err)
		}
		d.Close()
	}
}
