package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAuthDefaults(t *testing.T) {
	t.Parallel()
	a := mustLoad(t, "").Auth
	for name, ok := range map[string]bool{
		"switches":   !a.Enabled && a.AnonymousPull && a.PersonalNamespaces && a.DefaultVisibility == "private",
		"tokens":     a.TokenTTL == 5*time.Minute && a.RefreshAge == 90*24*time.Hour,
		"first":      a.InitialAdmin == "admin" && a.InitialPassword == "" && a.Htpasswd == "",
		"sessions":   a.SessionIdle == 12*time.Hour && a.SessionMaxAge == 7*24*time.Hour,
		"failures":   a.Login == Login{AccountFailures: 10, AddressFailures: 50},
		"scopes":     slices.Equal(a.OIDC.Scopes, []string{"openid", "profile", "email"}),
		"claims":     a.OIDC.UsernameClaim == "preferred_username" && a.OIDC.EmailClaim == "email" && a.OIDC.GroupsClaim == "groups",
		"filters":    a.LDAP.UserFilter == "(uid=%s)" && a.LDAP.GroupFilter == "(member=%s)",
		"attributes": a.LDAP.NameAttribute == "uid" && a.LDAP.EmailAttribute == "mail" && a.LDAP.GroupAttribute == "cn",
		"timeout":    a.LDAP.Timeout == 5*time.Second,
		"federation": a.Federation.Enabled && !a.Federation.AllowPrivate && a.Federation.OwnIssuers == nil,
	} {
		if !ok {
			t.Errorf("%s: other defaults: %+v", name, a)
		}
	}
}

// TestAuthIsOnBeyondLoopback checks the default of auth.enabled, also after later changes of
// the settings that it depends on.
func TestAuthIsOnBeyondLoopback(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"":                                               false,
		"http: {addr: 'localhost:1'}":                    false,
		"http: {addr: '[::1]:1'}":                        false,
		"http: {addr: ':1'}":                             true,
		"http: {addr: '10.0.0.1:1'}":                     true,
		"http: {addr: 'registry.example.com:1'}":         true,
		"http: {addr: nonsense}":                         true,
		"http: {addr: ':1', allow_anonymous: true}":      false,
		"http: {addr: ':1', allow_anonymous: false}":     true,
		"auth: {enabled: true}":                          true,
		"{http: {addr: ':1'}, auth: {enabled: false}}":   false,
		"{http: {debug_addr: ':1', profile_addr: ':2'}}": false,
		// Settings for a proxy on this machine say that others reach the registry.
		"http: {external_url: 'https://registry.example.com'}":                                true,
		"http: {trusted_proxies: loopback}":                                                   true,
		"http: {allowed_hosts: registry.example.com}":                                         true,
		"http: {addr: '[::1]:1', tls: {acme: {hosts: registry.example.com}}}":                 true,
		"http: {external_url: 'https://registry.example.com', allow_anonymous: true}":         false,
		"{http: {external_url: 'https://registry.example.com'}, auth: {enabled: false}}":      false,
		"{http: {external_url: 'https://registry.example.com'}, auth: {htpasswd: /htpasswd}}": true,
	} {
		if got := mustLoad(t, text).Auth.Enabled; got != want {
			t.Errorf("%s: auth.enabled is %v", text, got)
		}
	}
	c := mustLoad(t, "")
	for _, step := range []struct {
		key, value string
		want       bool
	}{
		{"http.addr", ":1", true}, {"http.allow_anonymous", "true", false}, {"http.allow_anonymous", "false", true}, {"http.addr", "127.0.0.1:1", false},
		{"http.trusted_proxies", "127.0.0.1", true}, {"http.trusted_proxies", "", false},
	} {
		if err := c.Set(step.key, step.value, "test"); err != nil || c.Auth.Enabled != step.want || c.Source("auth.enabled") != "default" {
			t.Errorf("%s: %s: auth.enabled is %v (%s), %v", step.key, step.value, c.Auth.Enabled, c.Source("auth.enabled"), err)
		}
	}
}

func TestValidateAuth(t *testing.T) {
	t.Parallel()
	const on = "auth: {enabled: true, "
	const ldap = on + "ldap: {url: 'ldaps://ldap.example.com', user_base: 'ou=people,dc=x', "
	for _, test := range []struct{ name, text, want string }{ // want "": no problem
		{"beyond loopback", "http: {addr: ':5000'}", ""},
		{"on loopback", "auth: {enabled: true}", ""},
		{"off on loopback", "auth: {enabled: false}", ""},
		{"off behind a proxy, for now", "auth: {enabled: false, htpasswd: /h, initial_password: hunter22}", ""},
		{"off and open", "http: {addr: ':5000', allow_anonymous: true}\nauth: {enabled: false}", ""},
		{"off beyond loopback", "http: {addr: ':5000'}\nauth: {enabled: false}", "purser.yaml:1: http.addr: :5000 can be reached from other machines and nobody needs to log in; remove auth.enabled: false"},
		{"on and open", "http: {addr: ':5000', allow_anonymous: true}\nauth: {enabled: true}", "purser.yaml:1: http.allow_anonymous: it says that nobody needs to log in, and auth.enabled ("},
		{"on and open on loopback", "http: {allow_anonymous: true}\nauth: {enabled: true}", "remove http.allow_anonymous to have log-ins, or auth.enabled to have none"},
		{"htpasswd on loopback", "auth: {htpasswd: /h}", "purser.yaml:1: auth.htpasswd: nobody needs to log in, since http.addr is on loopback; set auth.enabled: true"},
		{"password on loopback", "auth: {initial_password: hunter22}", "auth.initial_password: nobody needs to log in"},
		{"provider on loopback", "auth: {oidc: {issuer: 'https://id.example.com', client_id: c}}", "auth.oidc.issuer: nobody needs to log in"},
		{"directory for nobody", "http: {addr: ':5000', allow_anonymous: true}\nauth: {ldap: {url: 'ldaps://h', user_base: dc=x}}",
			"auth.ldap.url: nobody needs to log in, since http.allow_anonymous is set; remove that"},
		{"htpasswd", on + "htpasswd: /h}", ""},
		{"htpasswd at home", on + "htpasswd: ~/h}", "auth.htpasswd: \"~/h\": only a shell"},
		{"administrator", on + "initial_admin: a.b_c-d@example.com, initial_password: hunter22}", ""},
		{"administrator in capitals", on + "initial_admin: Admin}", "auth.initial_admin: \"Admin\" is no name of an account"},
		{"robot as administrator", on + "initial_admin: a+b}", "auth.initial_admin: "},
		{"no administrator", on + "initial_admin: ''}", "auth.initial_admin: "},
		{"long name", on + "initial_admin: " + strings.Repeat("a", 129) + "}", "auth.initial_admin: "},
		{"short password", on + "initial_password: hunter2}", "auth.initial_password: it is too short; use at least 8 characters"},
		{"name as the password", on + "initial_admin: administrator, initial_password: Administrator}", "auth.initial_password: it is the account's name"},

		{"provider", on + "oidc: {issuer: 'https://id.example.com/realms/a', client_id: c, client_secret: s, admin_groups: 'a, b'}}", ""},
		{"public client on this machine", on + "oidc: {issuer: 'http://localhost:8080', client_id: c}}", ""},
		{"provider over http", on + "oidc: {issuer: 'http://id.example.com', client_id: c}}", "auth.oidc.issuer: over http others could forge"},
		{"provider without a scheme", on + "oidc: {issuer: id.example.com, client_id: c}}", "auth.oidc.issuer: it is no URL of an OpenID Connect provider"},
		{"provider with a query", on + "oidc: {issuer: 'https://id.example.com?a=b', client_id: c}}", "auth.oidc.issuer: it is no URL"},
		{"an own issuer without a scheme", on + "federation: {own_issuers: gitlab.example.com}}", "auth.federation.own_issuers: \"gitlab.example.com\" is no URL"},
		{"no client", on + "oidc: {issuer: 'https://id.example.com'}}", "auth.oidc.client_id: it is missing"},
		{"no provider", on + "oidc: {groups_claim: roles}}", "purser.yaml:1: auth.oidc.groups_claim: it is set but auth.oidc.issuer isn't"},
		{"the defaults without a provider", on + "oidc: {groups_claim: groups, scopes: 'openid,profile,email'}}", ""},

		{"directory", ldap + "bind_dn: cn=purser, bind_password: s, group_base: 'ou=groups,dc=x', admin_groups: a, ca_file: /ca.pem}}", ""},
		{"StartTLS", on + "ldap: {url: 'ldap://h:1389/', user_base: dc=x, start_tls: true, ca_file: /ca.pem}}", ""},
		{"plain on this machine", on + "ldap: {url: 'ldap://[::1]:1389', user_base: dc=x}}", ""},
		{"plain allowed", on + "ldap: {url: 'ldap://h', user_base: dc=x, allow_plain: true}}", ""},
		{"plain", on + "ldap: {url: 'ldap://h', user_base: dc=x}}", "auth.ldap.url: everybody on the way to h could read passwords"},
		{"StartTLS twice", ldap + "start_tls: true}}", "auth.ldap.start_tls: connections to ldaps:// are encrypted from the beginning"},
		{"roots for nothing", on + "ldap: {url: 'ldap://localhost', user_base: dc=x, ca_file: /ca.pem}}", "auth.ldap.ca_file: connections aren't encrypted"},
		{"roots at home", ldap + "ca_file: ~/ca.pem}}", "auth.ldap.ca_file: \"~/ca.pem\": only a shell"},
		{"web site as a directory", on + "ldap: {url: 'https://h', user_base: dc=x}}", "auth.ldap.url: it is no URL of a directory"},
		{"directory with a base", on + "ldap: {url: 'ldaps://h/dc=x', user_base: dc=x}}", "auth.ldap.url: it is no URL of a directory"},
		{"no directory", on + "ldap: {user_base: dc=x}}", "auth.ldap.user_base: it is set but auth.ldap.url isn't"},
		{"no users", on + "ldap: {url: 'ldaps://h'}}", "auth.ldap.user_base: it is missing"},
		{"no password", ldap + "bind_dn: cn=purser}}", "auth.ldap.bind_dn: auth.ldap.bind_password is missing"},
		{"no DN", ldap + "bind_password: s}}", "auth.ldap.bind_password: auth.ldap.bind_dn is missing"},
		{"every user", ldap + "user_filter: (uid=*)}}", "auth.ldap.user_filter: \"(uid=*)\" lacks %s"},
		{"groups by name", ldap + "group_base: dc=x, group_filter: (memberUid=%n)}}", ""},
		{"groups of everybody", ldap + "group_filter: (cn=*)}}", "auth.ldap.group_filter: \"(cn=*)\" lacks %s, for the user's DN, or %n"},
		{"groups nowhere", ldap + "required_groups: a}}", "auth.ldap.group_base: it is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := mustLoad(t, test.text).Validate()
			if (err == nil) != (test.want == "") {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one problem: %v", err)
			}
		})
	}
}

func TestAuthRanges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"auth: {token_ttl: 59s}":                   "auth.token_ttl: 59s is too short; use at least 1m",
		"auth: {token_ttl: 61m}":                   "auth.token_ttl: 61m is too long; use at most 1h",
		"auth: {default_visibility: internal}":     "use one of private, public",
		"auth: {session_idle: 1s}":                 "auth.session_idle: 1s is too short",
		"auth: {login: {account_failures: 0}}":     "auth.login.account_failures: ",
		"http: {max_client_request_rate: -1}":      "http.max_client_request_rate: ",
		"http: {max_account_request_rate: plenty}": "http.max_account_request_rate: ",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestAccess: who has to log in is said with the reason and the way out, and a registry that is
// open only because nobody else reaches it is told from one that is open on purpose.
func TestAccess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text           string
		local, exposed bool
		want           string
	}{
		{"", true, false, "Nobody logs in: 127.0.0.1:5000 is on loopback, and no setting says that others reach it. Requests that come through a proxy are refused. Say auth.enabled: true"},
		{"http: {addr: ':1'}", false, false, "Clients log in, since other machines reach http.addr (:1)."},
		{"http: {external_url: 'https://r.example.com', trusted_proxies: loopback, allowed_hosts: r.example.com}", false, false,
			"Clients log in, since others reach the registry through a proxy, by http.external_url, http.trusted_proxies, http.allowed_hosts. Say auth.enabled: false"},
		{"auth: {enabled: true}", false, false, "purser.yaml:1) says."},
		{"auth: {enabled: false}", false, false, "purser.yaml:1) says: everybody who reaches 127.0.0.1:5000"},
		{"{http: {external_url: 'https://r.example.com'}, auth: {enabled: false}}", false, true,
			"purser.yaml:1) says, and others reach the registry, by http.external_url: everybody who reaches https://r.example.com may push"},
		{"http: {addr: ':1', allow_anonymous: true}", false, true, "purser.yaml:1) says, and others reach the registry, by http.addr: everybody who reaches :1"},
		{"http: {trusted_proxies: loopback, allow_anonymous: true}", false, true, "by http.trusted_proxies: everybody who reaches 127.0.0.1:5000 may"},
	} {
		c := mustLoad(t, test.text)
		if got := c.Access(); c.Auth.LocalOnly != test.local || c.Exposed() != test.exposed || !strings.Contains(got, test.want) {
			t.Errorf("%s: local only %v, exposed %v: %s", test.text, c.Auth.LocalOnly, c.Exposed(), got)
		}
	}
}
