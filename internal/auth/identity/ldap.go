package identity

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-ldap/ldap/v3"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/operatorfile"
)

// DirectoryOptions configure a Directory.
type DirectoryOptions struct {
	// URL is ldaps://HOST or ldap://HOST, with :PORT if it isn't 636 or 389. Required.
	URL string
	// StartTLS encrypts a connection to an ldap:// URL before anything else is sent.
	StartTLS bool
	// CAFile is a PEM file of the authorities that may have signed the directory's
	// certificate. Default: those of the system.
	CAFile string
	// AllowPlain allows ldap:// without StartTLS to a host beyond loopback. Everybody on the
	// way can read the passwords then.
	AllowPlain bool
	// BindDN and BindPassword are the service account, which searches users and groups. Without
	// them the searches are anonymous.
	BindDN, BindPassword string
	// UserBase is the DN of the entry below which the users are. Required.
	UserBase string
	// UserFilter finds a user's entry, and no other entry. %s is the name that the user has
	// entered. Default "(uid=%s)".
	UserFilter string
	// NameAttribute has the account's name. Default "uid".
	NameAttribute string
	// EmailAttribute has the email address. Default "mail".
	EmailAttribute string
	// PasswordChangedAttribute has the time at which the password was changed. It is read and only
	// compared. Default "pwdChangedTime".
	PasswordChangedAttribute string
	// GroupBase is the DN of the entry below which the groups are. Default: groups aren't read.
	GroupBase string
	// GroupFilter finds the groups of a user. %s is the DN of the user's entry, and %n the
	// value of its NameAttribute. Default "(member=%s)". For groups in groups, Active Directory
	// has the filter "(member:1.2.840.113556.1.4.1941:=%s)".
	GroupFilter string
	// GroupAttribute has a group's name. Default "cn".
	GroupAttribute string
	// MemberOfAttribute is an attribute of users in which the directory itself lists the DNs of
	// their groups, such as "memberOf". If it is set, Purser reads groups from there and doesn't
	// search them. Only DNs below GroupBase whose first attribute is GroupAttribute count. Some
	// directories also list groups of groups there.
	MemberOfAttribute string
	// AdminGroups are the groups whose members administer the registry. They, and RequiredGroups,
	// are names or DNs, in any case. The parts of a DN between its commas may be elements of the
	// list.
	AdminGroups []string
	// RequiredGroups are the groups of which a user must be in at least one to log in. Default:
	// every user may.
	RequiredGroups []string
	// Timeout bounds a log-in, including the wait for other log-ins. Default 5 s.
	Timeout time.Duration
	// MaxConns bounds the number of connections to the directory. Default 16, at least 2: a
	// log-in needs one connection for the searches and one for the check of the password.
	MaxConns int
	Log      *slog.Logger // default slog.Default()
}

// Directory checks passwords with a directory that speaks LDAP version 3 (RFC 4511). Its methods
// may be called concurrently.
//
// A log-in has these steps:
//
//  1. The service account searches the user's entry. Exactly one entry must match.
//  2. A new connection, which is used for nothing else, binds as that entry's DN with the
//     password. If no entry or several entries matched, it binds as a random DN with a random
//     password, so that the answer takes about as long.
//  3. The service account reads the user's groups.
//
// The name and the password that a client enters reach the directory in two places only. The
// name becomes part of a filter, in which it is escaped, so that it can only be a value. The
// password of a bind is never empty: a bind with an empty password succeeds at many directories
// without proving anything (RFC 4513, section 5.1.2). Names that the directory may take for the
// same name, although they are written differently, must not evade limits on failed log-ins,
// which count by name. Therefore Login refuses names with characters beyond printable ASCII, or
// with needless spaces. Names still may differ in case.
//
// Directory doesn't follow referrals: it would send the password to a server that the
// configuration doesn't name.
// A directory's answers have a bound (maxLDAPAnswer): a connection that gets a longer one is closed.
type Directory struct {
	opt        DirectoryOptions
	address    string // host and port
	tls        *tls.Config
	startTLS   bool
	groupBase  *ldap.DN
	admin      []string // AdminGroups and RequiredGroups, as FoldGroup returns them
	required   []string
	watch      *groupWatch
	turns      *limit.Queue        // of log-ins
	idle       chan *directoryConn // of the service account
	attributes []string            // of users
}

const (
	maxLoginName = 256  // bytes
	maxGroups    = 5000 // of a user
	groupPage    = 500  // entries of one answer
	// maxLogIns is how many log-ins may wait for their turn.
	maxLogIns = 256
	// maxIdle is how long an unused connection is kept. Firewalls and directories forget
	// connections that were idle for minutes.
	maxIdle = 30 * time.Second
)

// NewDirectory checks the options. It doesn't connect.
func NewDirectory(o DirectoryOptions) (*Directory, error) {
	o.UserFilter = cmp.Or(o.UserFilter, "(uid=%s)")
	o.NameAttribute = cmp.Or(o.NameAttribute, "uid")
	o.EmailAttribute = cmp.Or(o.EmailAttribute, "mail")
	o.PasswordChangedAttribute = cmp.Or(o.PasswordChangedAttribute, "pwdChangedTime")
	o.GroupFilter = cmp.Or(o.GroupFilter, "(member=%s)")
	o.GroupAttribute = cmp.Or(o.GroupAttribute, "cn")
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.MaxConns = cmp.Or(o.MaxConns, 16)
	d := &Directory{opt: o, attributes: []string{o.NameAttribute, o.EmailAttribute, o.PasswordChangedAttribute, entryUUID, objectGUID}}
	if err := d.parseURL(); err != nil {
		return nil, fmt.Errorf("LDAP: %w", err)
	}
	if err := d.checkOptions(); err != nil {
		return nil, fmt.Errorf("LDAP: %w", err)
	}
	d.watch = newGroupWatch(o.Log, "auth.ldap.", d.required, d.admin)
	if o.MemberOfAttribute != "" {
		d.attributes = append(d.attributes, o.MemberOfAttribute)
	}
	d.turns = limit.NewQueue(o.MaxConns/2, maxLogIns)
	d.idle = make(chan *directoryConn, o.MaxConns/2)
	return d, nil
}

// parseURL reads the options about the connection.
func (d *Directory) parseURL() error {
	u, err := url.Parse(d.opt.URL)
	if err != nil || u.Scheme != "ldap" && u.Scheme != "ldaps" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the URL should be ldaps://HOST or ldap://HOST, with :PORT if the port isn't the usual one, and nothing else")
	}
	secure := u.Scheme == "ldaps"
	port := cmp.Or(u.Port(), map[bool]string{true: ldap.DefaultLdapsPort, false: ldap.DefaultLdapPort}[secure])
	d.address = net.JoinHostPort(u.Hostname(), port)
	d.startTLS = d.opt.StartTLS
	switch {
	case secure && d.opt.StartTLS:
		return errors.New("StartTLS is for ldap:// URLs; connections to ldaps:// are encrypted from the beginning")
	case !secure && !d.opt.StartTLS:
		if d.opt.CAFile != "" {
			return errors.New("a file of authorities is given, but connections aren't encrypted: use ldaps:// or StartTLS")
		}
		if !d.opt.AllowPlain && !isLoopbackHost(u.Hostname()) {
			return fmt.Errorf("connections to %s wouldn't be encrypted, and so show passwords: use ldaps:// or StartTLS, or allow this explicitly", u.Host)
		}
		return nil
	}
	d.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	if d.tls.RootCAs, err = operatorfile.Roots(context.Background(), d.opt.CAFile); err != nil {
		return fmt.Errorf("reading the file of authorities: %w", err)
	}
	return nil
}

// checkOptions checks the options about searches.
func (d *Directory) checkOptions() error {
	o := &d.opt
	switch {
	case (o.BindDN == "") != (o.BindPassword == ""):
		return errors.New("the service account needs a DN and a password, or neither for anonymous searches")
	case o.UserBase == "":
		return errors.New("the DN of the entry that has the users is required")
	case o.GroupBase == "" && (o.MemberOfAttribute != "" || len(o.AdminGroups) > 0 || len(o.RequiredGroups) > 0):
		return errors.New("groups are used, so the DN of the entry that has the groups is required")
	case o.MaxConns < 2:
		return errors.New("at least 2 connections are needed")
	case o.Timeout <= 0:
		return errors.New("the timeout should be positive")
	case !strings.Contains(o.UserFilter, "%s"):
		return fmt.Errorf("the filter %s of users should have %%s, for the user's name", o.UserFilter)
	case !strings.Contains(o.GroupFilter, "%s") && !strings.Contains(o.GroupFilter, "%n"):
		return fmt.Errorf("the filter %s of groups should have %%s, for the user's DN, or %%n, for the user's name", o.GroupFilter)
	}
	for _, dn := range []string{o.BindDN, o.UserBase, o.GroupBase} {
		parsed, err := ldap.ParseDN(dn)
		if err != nil {
			return fmt.Errorf("%q isn't a DN: %w", dn, err)
		}
		d.groupBase = parsed // the last one
	}
	var err error
	if d.admin, err = configuredGroups(o.AdminGroups, d.groupBase); err != nil {
		return err
	}
	if d.required, err = configuredGroups(o.RequiredGroups, d.groupBase); err != nil {
		return err
	}
	for _, filter := range []string{userFilter(o.UserFilter, "x"), groupFilter(o.GroupFilter, "x", "x")} {
		if _, err := ldap.CompileFilter(filter); err != nil {
			return fmt.Errorf("%s isn't a filter: %w", filter, err)
		}
	}
	return nil
}

func userFilter(filter, name string) string {
	return strings.ReplaceAll(filter, "%s", ldap.EscapeFilter(name))
}

func groupFilter(filter, dn, name string) string {
	return strings.NewReplacer("%s", ldap.EscapeFilter(dn), "%n", ldap.EscapeFilter(name)).Replace(filter)
}

// Close closes the idle connections.
func (d *Directory) Close() {
	for {
		select {
		case c := <-d.idle:
			c.Close() //nolint:errcheck // nothing is pending
		default:
			return
		}
	}
}

// unavailable returns an ErrUnavailable with its cause.
func unavailable(doing string, err error) error {
	if ldap.IsErrorWithCode(err, ldap.LDAPResultReferral) {
		doing += " (the directory refers to another server, and Purser doesn't follow that)"
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
}

// Login checks a name and a password and returns who logs in. The identity's Subject is the DN
// of the user's entry in its normal form (RFC 4514, attribute types in lower case), and EntryID is
// what stays when the entry is renamed or moved. Login returns an error that wraps ErrRefused or
// ErrUnavailable.
//
// Log-ins wait for their turn in a queue in which each client has a share (see limit.WithCaller).
func (d *Directory) Login(ctx context.Context, name, pass string) (Identity, error) {
	// A log-in that can't be right costs the same, so that the time tells nothing about the name.
	impossible := ""
	switch {
	case pass == "":
		impossible = "the password is empty"
	case !isLoginName(name):
		impossible, name = "the name has characters that no log-in's name may have", randomText()
	}
	ctx, done, err := d.begin(ctx)
	if err != nil {
		return Identity{}, err
	}
	defer done()
	service, entry, problem, err := d.findUser(ctx, name)
	if err != nil {
		return Identity{}, err
	}
	defer d.release(service)
	if problem = cmp.Or(impossible, problem); problem != "" {
		entry = &ldap.Entry{DN: "cn=" + randomText() + "," + d.opt.UserBase}
		pass = randomText()
	}
	if err := d.bindUser(ctx, entry.DN, pass); err != nil || problem != "" {
		if errors.Is(err, ErrUnavailable) {
			return Identity{}, err
		}
		return Identity{}, refused("%s", cmp.Or(problem, fmt.Sprint(err)))
	}
	return d.identity(ctx, service, entry)
}

// isLoginName says whether a name may be searched. See Directory for the reason.
func isLoginName(name string) bool {
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			return false
		}
	}
	return name != "" && len(name) <= maxLoginName && strings.Join(strings.Fields(name), " ") == name
}

func randomText() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return hex.EncodeToString(b[:])
}

// findUser returns a connection of the service account, and the user's entry. If no entry or
// several entries match the name, findUser returns a problem instead of the entry. If it returns
// an error, it returns no connection.
func (d *Directory) findUser(ctx context.Context, name string) (c *directoryConn, entry *ldap.Entry, problem string, err error) {
	request := ldap.NewSearchRequest(d.opt.UserBase, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases,
		2, d.timeLimit(), false, userFilter(d.opt.UserFilter, name), d.attributes, nil)
	request.EnforceSizeLimit = true // whatever the directory makes of the limit
	var found *ldap.SearchResult
	for {
		var reused bool
		if c, reused, err = d.service(ctx); err != nil {
			return nil, nil, "", err
		}
		err = c.do(ctx, func() error {
			found, err = c.Search(request)
			return err
		})
		if err == nil || tooMany(err) || !reused || ctx.Err() != nil || !c.broken {
			break
		}
		c.Close() //nolint:errcheck // the directory has closed it; take another one
	}
	switch {
	case tooMany(err), err == nil && len(found.Entries) > 1:
		return c, nil, "several entries match the name; the filter of users should match one", nil
	case err != nil:
		c.Close() //nolint:errcheck // the search's error matters
		return nil, nil, "", unavailable("searching the user", err)
	case len(found.Entries) == 0:
		return c, nil, "no entry matches the name", nil
	case found.Entries[0].DN == "": // a bind with an empty DN proves nothing
		return c, nil, "the entry has no DN", nil
	}
	return c, found.Entries[0], "", nil
}

// bindUser checks a user's password on a connection of its own. It returns an ErrUnavailable,
// or an error that says why the directory refuses the password.
func (d *Directory) bindUser(ctx context.Context, dn, password string) error {
	c, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the answer to the bind is all that matters
	request := ldap.NewSimpleBindRequest(dn, password, []ldap.Control{ldap.NewControlBeheraPasswordPolicy()})
	var result *ldap.SimpleBindResult
	err = c.do(ctx, func() error {
		result, err = c.SimpleBind(request)
		return err
	})
	// Besides invalid credentials, directories refuse locked and disabled accounts, and entries
	// without a password, with the other codes.
	if ldap.IsErrorAnyOf(err, ldap.LDAPResultInvalidCredentials, ldap.LDAPResultNoSuchObject, ldap.LDAPResultInvalidDNSyntax,
		ldap.LDAPResultInappropriateAuthentication, ldap.LDAPResultConstraintViolation,
		ldap.LDAPResultInsufficientAccessRights, ldap.LDAPResultUnwillingToPerform) {
		return err
	}
	if err != nil {
		return unavailable("checking the password", err)
	}
	// A directory may accept a password that is good for nothing but changing it.
	if policy, ok := ldap.FindControl(result.Controls, ldap.ControlTypeBeheraPasswordPolicy).(*ldap.ControlBeheraPasswordPolicy); ok && policy.Error >= 0 {
		return fmt.Errorf("the directory's policy of passwords: %s", policy.ErrorString)
	}
	return nil
}

// identity returns the identity of a user whose password was right.
func (d *Directory) identity(ctx context.Context, service *directoryConn, entry *ldap.Entry) (Identity, error) {
	dn, err := ldap.ParseDN(entry.DN)
	if err != nil {
		return Identity{}, unavailable("reading the DN of the user's entry", err)
	}
	name := nameOf(dn, entry.GetEqualFoldAttributeValues(d.opt.NameAttribute), d.opt.NameAttribute)
	id := Identity{
		Source: SourceLDAP, Subject: dn.String(), EntryID: entryID(entry), Name: strings.ToLower(name),
		Email:           entry.GetEqualFoldAttributeValue(d.opt.EmailAttribute),
		PasswordChanged: entry.GetEqualFoldAttributeValue(d.opt.PasswordChangedAttribute),
	}
	if !accountName.MatchString(id.Name) {
		return Identity{}, refused("the attribute %s of %s has %.200q, which can't be an account's name", d.opt.NameAttribute, id.Subject, name)
	}
	switch {
	case d.opt.MemberOfAttribute != "":
		id.Groups, id.GroupDNs = d.memberOf(entry.GetEqualFoldAttributeValues(d.opt.MemberOfAttribute))
	case d.opt.GroupBase != "":
		if id.Groups, id.GroupDNs, err = d.searchGroups(ctx, service, entry.DN, name); err != nil {
			return Identity{}, err
		}
	}
	slices.Sort(id.Groups)
	slices.Sort(id.GroupDNs)
	id.Groups, id.GroupDNs = slices.Compact(id.Groups), slices.Compact(id.GroupDNs)
	keys := id.GroupKeys()
	in := func(group string) bool { return slices.Contains(keys, group) }
	outside := len(d.required) > 0 && !slices.ContainsFunc(d.required, in)
	d.watch.met(id, outside)
	if outside {
		return Identity{}, refused("%s is in none of the required groups", id.Subject)
	}
	id.Superuser = slices.ContainsFunc(d.admin, in)
	return id, nil
}

// Attributes with the id of an entry, which the directory itself writes: of RFC 4530 and of Active
// Directory.
const (
	entryUUID  = "entryUUID"
	objectGUID = "objectGUID"
)

// entryID returns the id of an entry in the form of Identity.EntryID, or "". An attribute with
// several values is no id.
func entryID(entry *ldap.Entry) string {
	if id := entry.GetEqualFoldRawAttributeValues(entryUUID); len(id) == 1 && len(id[0]) > 0 {
		return strings.ToLower(entryUUID + "=" + string(id[0]))
	}
	if id := entry.GetEqualFoldRawAttributeValues(objectGUID); len(id) == 1 && len(id[0]) > 0 {
		return strings.ToLower(objectGUID) + "=" + hex.EncodeToString(id[0])
	}
	return ""
}

// nameOf returns the value of the attribute that has the account's name, or "". If it has several
// values, their order means nothing; then the value in the DN is the name, or else the least one.
func nameOf(dn *ldap.DN, values []string, attribute string) string {
	if len(values) == 0 {
		return ""
	}
	for _, a := range dn.RDNs[0].Attributes {
		if strings.EqualFold(a.Type, attribute) && slices.Contains(values, a.Value) {
			return a.Value
		}
	}
	return slices.Min(values)
}

// memberOf returns the names and the DNs of the groups with the given DNs, as far as they are below
// GroupBase: groups elsewhere may be made by people who don't administer the directory.
func (d *Directory) memberOf(dns []string) (groups, folded []string) {
	for _, text := range dns {
		dn, err := ldap.ParseDN(text)
		if err != nil || !d.groupBase.AncestorOfFold(dn) || len(dn.RDNs[0].Attributes) != 1 {
			continue
		}
		if first := dn.RDNs[0].Attributes[0]; strings.EqualFold(first.Type, d.opt.GroupAttribute) {
			groups, folded = append(groups, first.Value), append(folded, FoldGroup(text))
		}
	}
	return groups, folded
}

// GroupOf returns what a team's group is stored as: the folded form of a group's DN, or of its name.
func GroupOf(text string) (string, error) {
	dn, err := ldap.ParseDN(text)
	if strings.Contains(text, "=") && (err != nil || len(dn.RDNs) == 0) {
		return "", fmt.Errorf("%s isn't the DN of a group, such as cn=developers,ou=groups,dc=example,dc=com", excerpt(text))
	}
	return FoldGroup(text), nil
}

// searchGroups returns the names and the DNs of a user's groups. It returns an error if there are more than
// maxGroups: without some of the groups, the user's rights would be wrong.
func (d *Directory) searchGroups(ctx context.Context, service *directoryConn, dn, name string) (groups, dns []string, err error) {
	page := ldap.NewControlPaging(groupPage)
	request := ldap.NewSearchRequest(d.opt.GroupBase, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases,
		0, d.timeLimit(), false, groupFilter(d.opt.GroupFilter, dn, name), []string{d.opt.GroupAttribute}, []ldap.Control{page})
	for entries := 0; ; {
		var found *ldap.SearchResult
		err := service.do(ctx, func() error {
			found, err = service.Search(request)
			return err
		})
		if err != nil {
			return nil, nil, unavailable("searching the user's groups", err)
		}
		for _, e := range found.Entries {
			groups = append(groups, e.GetEqualFoldAttributeValues(d.opt.GroupAttribute)...)
			dns = append(dns, FoldGroup(e.DN))
		}
		if entries += len(found.Entries); entries > maxGroups {
			service.broken = true // the search isn't at its end
			return nil, nil, unavailable("searching the user's groups", fmt.Errorf("there are more than %d", maxGroups))
		}
		next, ok := ldap.FindControl(found.Controls, ldap.ControlTypePaging).(*ldap.ControlPaging)
		if !ok || len(next.Cookie) == 0 {
			return groups, dns, nil
		}
		page.SetCookie(next.Cookie)
	}
}

// timeLimit returns the time, in seconds, after which the directory itself ends a search.
func (d *Directory) timeLimit() int {
	return int((d.opt.Timeout + time.Second - 1) / time.Second)
}
