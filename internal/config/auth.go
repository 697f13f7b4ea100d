package config

import (
	"math"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Auth configures access control: who may log in, how long log-ins last, and what is allowed
// without one.
type Auth struct {
	// Enabled says that access control is on. Otherwise everybody may do everything. Default:
	// true if others than this machine reach the registry (HTTP.ReachedBy), and
	// http.allow_anonymous isn't set.
	Enabled bool
	// LocalOnly says that access control is off without anybody having said so, only because
	// nothing in the configuration says that others reach the registry. It isn't a setting.
	LocalOnly bool
	// AnonymousPull says that everybody may pull from public repositories. Otherwise every
	// account may.
	AnonymousPull      bool
	DefaultVisibility  string   // of repositories for which nobody has chosen one: private or public
	PersonalNamespaces bool     // a new person's account administers the namespace of its name
	ReservedNamespaces []string // names of namespaces that no person gets
	TokenTTL           time.Duration
	RefreshAge         time.Duration // how long a refresh token is valid
	InitialAdmin       string        // name of the account that is created if there is none
	InitialPassword    Secret        // of InitialAdmin; "": a generated one
	Htpasswd           string        // path of a file with bcrypt hashes; "": none
	SessionIdle        time.Duration // how long a browser's session lasts without being used
	SessionMaxAge      time.Duration // how long it lasts at most
	Login              Login
	OIDC               OIDC
	LDAP               LDAP
	Federation         Federation
}

// Login limits failed log-ins.
type Login struct {
	AccountFailures int // of one account at once
	AddressFailures int // from one address at once
}

// OIDC configures log-ins at an OpenID Connect provider.
type OIDC struct {
	Issuer         string        // URL; "": there is no provider
	CAFile         string        // path of a PEM file with the authorities of its certificate; "": the system's
	Timeout        time.Duration // of an answer
	ClientID       string
	ClientSecret   Secret // "" for a public client
	Scopes         []string
	UsernameClaim  string // "a.b" is the member "b" of the claim "a"
	EmailClaim     string
	GroupsClaim    string
	AdminGroups    []string // their members are administrators of the registry
	RequiredGroups []string // a person must be in one of them; empty: everybody may log in
}

// LDAP configures log-ins with passwords of a directory.
type LDAP struct {
	URL               string // "": there is no directory
	StartTLS          bool
	CAFile            string // path of a PEM file; "": the system's roots
	BindDN            string // "": searches are anonymous
	BindPassword      Secret
	UserBase          string
	UserFilter        string
	NameAttribute     string
	EmailAttribute    string
	GroupBase         string // "": groups aren't read
	GroupFilter       string
	GroupAttribute    string
	MemberOfAttribute string // "": groups are searched
	AdminGroups       []string
	RequiredGroups    []string
	AllowPlain        bool
	Timeout           time.Duration // of a log-in
	// PasswordChangedAttribute says when a password was changed, and Recheck how often it is read.
	PasswordChangedAttribute string
	Recheck                  time.Duration
}

// Federation configures robots that log in with the OpenID Connect tokens of pipelines.
type Federation struct {
	Enabled      bool
	AllowPrivate bool // issuers may have addresses that aren't public
	// OwnIssuers are URLs of issuers that give tokens to nobody else's pipelines.
	OwnIssuers []string
}

// authSettings are the settings of access control.
var authSettings = []setting{
	{key: "auth.enabled", def: "false", derived: "true, unless only this machine reaches the registry or http.allow_anonymous is set", field: func(c *Config) field {
		return boolField{&c.Auth.Enabled}
	}},
	{key: "auth.anonymous_pull", def: "true", field: func(c *Config) field { return boolField{&c.Auth.AnonymousPull} }},
	{key: "auth.default_visibility", def: "private", field: func(c *Config) field {
		return choiceField{&c.Auth.DefaultVisibility, []string{"private", "public"}}
	}},
	{key: "auth.personal_namespaces", def: "true", field: func(c *Config) field { return boolField{&c.Auth.PersonalNamespaces} }},
	{key: "auth.reserved_namespaces", def: "library, docker.io, ghcr.io, gcr.io, quay.io, registry.k8s.io, public.ecr.aws, mcr.microsoft.com", field: func(c *Config) field {
		return listField{&c.Auth.ReservedNamespaces}
	}},
	{key: "auth.token_ttl", def: "5m", field: func(c *Config) field {
		return durationField{&c.Auth.TokenTTL, time.Minute, time.Hour}
	}},
	{key: "auth.refresh_token_age", def: "2160h", field: func(c *Config) field {
		return durationField{&c.Auth.RefreshAge, time.Minute, maxDuration}
	}},
	{key: "auth.initial_admin", def: "admin", field: func(c *Config) field { return textField{&c.Auth.InitialAdmin} }},
	{key: "auth.initial_password", derived: "a generated one", field: func(c *Config) field { return secretField{&c.Auth.InitialPassword} }},
	{key: "auth.htpasswd", field: func(c *Config) field { return textField{&c.Auth.Htpasswd} }},
	{key: "auth.session_idle", def: "12h", field: func(c *Config) field {
		return durationField{&c.Auth.SessionIdle, time.Minute, maxDuration}
	}},
	{key: "auth.session_max_age", def: "168h", field: func(c *Config) field {
		return durationField{&c.Auth.SessionMaxAge, time.Minute, maxDuration}
	}},
	{key: "auth.login.account_failures", def: "10", field: func(c *Config) field {
		return intField{&c.Auth.Login.AccountFailures, 1, math.MaxInt32}
	}},
	{key: "auth.login.address_failures", def: "50", field: func(c *Config) field {
		return intField{&c.Auth.Login.AddressFailures, 1, math.MaxInt32}
	}},

	{key: "auth.oidc.issuer", field: func(c *Config) field { return textField{&c.Auth.OIDC.Issuer} }},
	{key: "auth.oidc.ca_file", field: func(c *Config) field { return textField{&c.Auth.OIDC.CAFile} }},
	{key: "auth.oidc.timeout", def: "10s", field: func(c *Config) field {
		return durationField{&c.Auth.OIDC.Timeout, 100 * time.Millisecond, 5 * time.Minute}
	}},
	{key: "auth.oidc.client_id", field: func(c *Config) field { return textField{&c.Auth.OIDC.ClientID} }},
	{key: "auth.oidc.client_secret", field: func(c *Config) field { return secretField{&c.Auth.OIDC.ClientSecret} }},
	{key: "auth.oidc.scopes", def: "openid, profile, email", field: func(c *Config) field { return listField{&c.Auth.OIDC.Scopes} }},
	{key: "auth.oidc.username_claim", def: "preferred_username", field: func(c *Config) field { return textField{&c.Auth.OIDC.UsernameClaim} }},
	{key: "auth.oidc.email_claim", def: "email", field: func(c *Config) field { return textField{&c.Auth.OIDC.EmailClaim} }},
	{key: "auth.oidc.groups_claim", def: "groups", field: func(c *Config) field { return textField{&c.Auth.OIDC.GroupsClaim} }},
	{key: "auth.oidc.admin_groups", field: func(c *Config) field { return listField{&c.Auth.OIDC.AdminGroups} }},
	{key: "auth.oidc.required_groups", field: func(c *Config) field { return listField{&c.Auth.OIDC.RequiredGroups} }},

	{key: "auth.ldap.url", field: func(c *Config) field { return textField{&c.Auth.LDAP.URL} }},
	{key: "auth.ldap.start_tls", def: "false", field: func(c *Config) field { return boolField{&c.Auth.LDAP.StartTLS} }},
	{key: "auth.ldap.ca_file", field: func(c *Config) field { return textField{&c.Auth.LDAP.CAFile} }},
	{key: "auth.ldap.allow_plain", def: "false", field: func(c *Config) field { return boolField{&c.Auth.LDAP.AllowPlain} }},
	{key: "auth.ldap.bind_dn", field: func(c *Config) field { return textField{&c.Auth.LDAP.BindDN} }},
	{key: "auth.ldap.bind_password", field: func(c *Config) field { return secretField{&c.Auth.LDAP.BindPassword} }},
	{key: "auth.ldap.user_base", field: func(c *Config) field { return textField{&c.Auth.LDAP.UserBase} }},
	{key: "auth.ldap.user_filter", def: "(uid=%s)", field: func(c *Config) field { return textField{&c.Auth.LDAP.UserFilter} }},
	{key: "auth.ldap.name_attribute", def: "uid", field: func(c *Config) field { return textField{&c.Auth.LDAP.NameAttribute} }},
	{key: "auth.ldap.email_attribute", def: "mail", field: func(c *Config) field { return textField{&c.Auth.LDAP.EmailAttribute} }},
	{key: "auth.ldap.group_base", field: func(c *Config) field { return textField{&c.Auth.LDAP.GroupBase} }},
	{key: "auth.ldap.group_filter", def: "(member=%s)", field: func(c *Config) field { return textField{&c.Auth.LDAP.GroupFilter} }},
	{key: "auth.ldap.group_attribute", def: "cn", field: func(c *Config) field { return textField{&c.Auth.LDAP.GroupAttribute} }},
	{key: "auth.ldap.member_of_attribute", field: func(c *Config) field { return textField{&c.Auth.LDAP.MemberOfAttribute} }},
	{key: "auth.ldap.admin_groups", field: func(c *Config) field { return groupsField{&c.Auth.LDAP.AdminGroups} }},
	{key: "auth.ldap.required_groups", field: func(c *Config) field { return groupsField{&c.Auth.LDAP.RequiredGroups} }},
	{key: "auth.ldap.password_changed_attribute", def: "pwdChangedTime", field: func(c *Config) field {
		return textField{&c.Auth.LDAP.PasswordChangedAttribute}
	}},
	{key: "auth.ldap.recheck", def: "1h", field: func(c *Config) field {
		return durationField{&c.Auth.LDAP.Recheck, time.Minute, 7 * 24 * time.Hour}
	}},
	{key: "auth.ldap.timeout", def: "5s", field: func(c *Config) field {
		return durationField{&c.Auth.LDAP.Timeout, 100 * time.Millisecond, 5 * time.Minute}
	}},

	{key: "auth.federation.enabled", def: "true", field: func(c *Config) field { return boolField{&c.Auth.Federation.Enabled} }},
	{key: "auth.federation.allow_private", def: "false", field: func(c *Config) field {
		return boolField{&c.Auth.Federation.AllowPrivate}
	}},
	{key: "auth.federation.own_issuers", field: func(c *Config) field { return listField{&c.Auth.Federation.OwnIssuers} }},
}

// deriveAuth computes the default of auth.enabled.
func (c *Config) deriveAuth() {
	isOpen := c.HTTP.AllowAnonymous
	if !c.isSet("auth.enabled") {
		c.Auth.Enabled = len(c.HTTP.ReachedBy()) > 0 && !isOpen
	}
	c.Auth.LocalOnly = !c.Auth.Enabled && !c.isSet("auth.enabled") && !isOpen
}

// minPassword is the least length of a password in bytes.
const minPassword = 8

var accountName = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,127}$`)

// validateAuth reports contradictory and incomplete settings of access control.
func (c *Config) validateAuth(report reporter) {
	a := c.Auth
	if a.Enabled && c.HTTP.AllowAnonymous {
		report("http.allow_anonymous", "it says that nobody needs to log in, and auth.enabled (%s) says the opposite; "+
			"remove http.allow_anonymous to have log-ins, or auth.enabled to have none", c.Source("auth.enabled"))
	}
	c.validateUnused(report)
	if !accountName.MatchString(a.InitialAdmin) {
		report("auth.initial_admin", "%q is no name of an account; use up to 128 lower-case letters, digits and . _ @ -, with a letter or a digit first", a.InitialAdmin)
	}
	switch password := string(a.InitialPassword); {
	case password == "":
	case len(password) < minPassword:
		report("auth.initial_password", "it is too short; use at least %d characters, or remove it to have one generated", minPassword)
	case strings.EqualFold(password, a.InitialAdmin):
		report("auth.initial_password", "it is the account's name; choose another one, or remove it to have one generated")
	}
	c.validateOIDC(report)
	c.validateLDAP(report)
	for _, issuer := range a.Federation.OwnIssuers {
		if u, err := url.Parse(issuer); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			report("auth.federation.own_issuers", "%q is no URL of an issuer, such as https://gitlab.example.com", issuer)
		}
	}
}

// validateUnused reports settings about log-ins if nobody needs to log in and auth.enabled
// doesn't say so explicitly. An operator who names a directory must not believe that it checks
// passwords, if the registry listens on loopback.
func (c *Config) validateUnused(report reporter) {
	if c.Auth.Enabled || c.isSet("auth.enabled") {
		return
	}
	reason, remedy := "http.addr is on loopback", "set auth.enabled: true"
	if c.HTTP.AllowAnonymous {
		reason, remedy = "http.allow_anonymous is set", "remove that and set auth.enabled: true"
	}
	for _, key := range []string{"auth.initial_password", "auth.htpasswd", "auth.oidc.issuer", "auth.ldap.url"} {
		if settingOf(key).field(c).show() != "" {
			report(key, "nobody needs to log in, since %s; %s, or remove this", reason, remedy)
		}
	}
}

// validateGroup reports each setting with the prefix `prefix` that has another value than its
// default, since the setting `missing`, on which they depend, isn't set.
func (c *Config) validateGroup(report reporter, prefix, missing string) {
	for _, s := range authSettings {
		if strings.HasPrefix(s.key, prefix) && s.field(c).show() != s.def {
			report(s.key, "it is set but %s isn't; set that, or remove this", missing)
		}
	}
}

func (c *Config) validateOIDC(report reporter) {
	o := c.Auth.OIDC
	if o.Issuer == "" {
		c.validateGroup(report, "auth.oidc.", "auth.oidc.issuer")
		return
	}
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		report("auth.oidc.issuer", "it is no URL of an OpenID Connect provider; write it as https://id.example.com, without a user, a password and a query")
	case u.Scheme == "http" && !isLoopbackName(u.Hostname()):
		report("auth.oidc.issuer", "over http others could forge the provider's keys; use https")
	case u.Scheme == "http" && o.CAFile != "":
		report("auth.oidc.ca_file", "auth.oidc.issuer is an http URL, so there is no certificate to check; use https, or remove this")
	}
	if o.ClientID == "" {
		report("auth.oidc.client_id", "it is missing; set the name under which the provider auth.oidc.issuer knows Purser")
	}
}

func (c *Config) validateLDAP(report reporter) {
	l := c.Auth.LDAP
	if l.URL == "" {
		c.validateGroup(report, "auth.ldap.", "auth.ldap.url")
		return
	}
	c.validateLDAPConnection(report)
	if l.BindDN != "" && l.BindPassword == "" {
		report("auth.ldap.bind_dn", "auth.ldap.bind_password is missing; set both, or neither for anonymous searches")
	}
	if l.BindDN == "" && l.BindPassword != "" {
		report("auth.ldap.bind_password", "auth.ldap.bind_dn is missing; set both, or neither for anonymous searches")
	}
	if l.UserBase == "" {
		report("auth.ldap.user_base", "it is missing; set the DN below which the users are, such as ou=people,dc=example,dc=com")
	}
	if !strings.Contains(l.UserFilter, "%s") {
		report("auth.ldap.user_filter", "%q lacks %%s, for the name that the user enters; write it as (uid=%%s)", l.UserFilter)
	}
	if !strings.Contains(l.GroupFilter, "%s") && !strings.Contains(l.GroupFilter, "%n") {
		report("auth.ldap.group_filter", "%q lacks %%s, for the user's DN, or %%n, for the user's name; write it as (member=%%s)", l.GroupFilter)
	}
	if l.GroupBase == "" && (l.MemberOfAttribute != "" || len(l.AdminGroups) > 0 || len(l.RequiredGroups) > 0) {
		report("auth.ldap.group_base", "it is missing, and other settings name groups; set the DN below which the groups are, such as ou=groups,dc=example,dc=com")
	}
}

// validateLDAPConnection checks the URL of the directory, which is set, and how connections
// are encrypted.
func (c *Config) validateLDAPConnection(report reporter) {
	l := c.Auth.LDAP
	u, err := url.Parse(l.URL)
	if err != nil || u.Scheme != "ldap" && u.Scheme != "ldaps" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		report("auth.ldap.url", "it is no URL of a directory; write it as ldaps://host or ldap://host:port, and nothing else")
		return
	}
	switch plain := u.Scheme == "ldap" && !l.StartTLS; {
	case u.Scheme == "ldaps" && l.StartTLS:
		report("auth.ldap.start_tls", "connections to ldaps:// are encrypted from the beginning; remove this, or use ldap://")
	case plain && l.CAFile != "":
		report("auth.ldap.ca_file", "connections aren't encrypted, so there is no certificate to check; use ldaps:// or auth.ldap.start_tls: true")
	case plain && !l.AllowPlain && !isLoopbackName(u.Hostname()):
		report("auth.ldap.url", "everybody on the way to %s could read passwords; use ldaps:// or auth.ldap.start_tls: true, or set auth.ldap.allow_plain: true", u.Host)
	}
}

// isLoopbackName says whether `host` is "localhost" or a loopback address.
func isLoopbackName(host string) bool {
	loopback, err := parseAddr(net.JoinHostPort(host, "0"))
	return err == nil && loopback
}
