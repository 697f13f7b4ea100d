// Command oidcprovider is an OpenID Connect provider with a log-in page, for tests. It is the
// example provider of github.com/zitadel/oidc, a certified implementation, with groups.
//
// It reads its settings as JSON from standard input, listens on a free port of 127.0.0.1, prints
// its issuer as one line, and ends when standard input does. It is a module of its own, so that
// the registry doesn't depend on what it needs. The package
// internal/auth/identity/identitytest starts it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// settings are what standard input has.
type settings struct {
	// ClientID and Secret are those of the client to which ID tokens with all claims are
	// issued. Groups are in the claim "groups" and in the nested claim "realm_access.roles".
	ClientID, Secret string
	// UserinfoClientID is a client with the same secret, for which only the userinfo endpoint
	// tells name, email address and groups, as the specification says for the code flow.
	UserinfoClientID string
	Users            []user
}

type user struct {
	Subject, Name, Password, Email string
	EmailUnverified                bool
	Groups                         []string
}

// client is a client that may be redirected to any URL of this machine.
type client struct {
	*storage.Client
	everything bool // all claims are in the ID token
}

func (c client) RedirectURIGlobs() []string {
	return []string{"http://127.0.0.1:*/**", "http://localhost:*/**", "https://127.0.0.1:*/**", "https://localhost:*/**"}
}

func (c client) PostLogoutRedirectURIGlobs() []string { return c.RedirectURIGlobs() }

func (c client) IDTokenUserinfoClaimsAssertion() bool { return c.everything }

// store is the example's storage with groups.
type store struct {
	*storage.Storage
	clients map[string]client
	users   map[string]user // by subject
}

func (s *store) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	c, ok := s.clients[id]
	if !ok {
		return nil, fmt.Errorf("there is no client %q", id)
	}
	return c, nil
}

func (s *store) addClaims(info *oidc.UserInfo, subject string) {
	groups := s.users[subject].Groups
	info.AppendClaims("groups", groups)
	info.AppendClaims("realm_access", map[string]any{"roles": groups})
	if s.users[subject].EmailUnverified {
		info.AppendClaims("email_verified", false) // the library leaves false out
	}
}

func (s *store) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, scopes []string) error {
	if s.clients[token.GetClientID()].everything {
		s.addClaims(info, token.GetSubject())
	}
	return s.Storage.SetUserinfoFromRequest(ctx, info, token, scopes)
}

func (s *store) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	s.addClaims(info, subject)
	return s.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin)
}

// userStore is the example's store of users, filled from the settings.
type userStore map[string]*storage.User

func (s userStore) GetUserByID(id string) *storage.User { return s[id] }

func (s userStore) GetUserByUsername(name string) *storage.User {
	for _, u := range s {
		if u.Username == name {
			return u
		}
	}
	return nil
}

func (s userStore) ExampleClientID() string { return storage.ServiceUserID }

func newStore(o settings) *store {
	s := &store{users: map[string]user{}, clients: map[string]client{
		o.ClientID:         {storage.WebClient(o.ClientID, o.Secret), true},
		o.UserinfoClientID: {storage.WebClient(o.UserinfoClientID, o.Secret), false},
	}}
	users, clients := userStore{}, map[string]*storage.Client{}
	for id, c := range s.clients {
		clients[id] = c.Client
	}
	for _, u := range o.Users {
		s.users[u.Subject] = u
		users[u.Subject] = &storage.User{ID: u.Subject, Username: u.Name, Password: u.Password, Email: u.Email, EmailVerified: !u.EmailUnverified}
	}
	s.Storage = storage.NewStorageWithClients(users, clients)
	return s
}

func run() error {
	in := json.NewDecoder(os.Stdin)
	var o settings
	if err := in.Decode(&o); err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := "http://" + listener.Addr().String()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	handler := exampleop.SetupServer(issuer, newStore(o), log, false)
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(listener, handler) }() //nolint:gosec // for tests
	fmt.Println(issuer)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "oidcprovider:", err)
		os.Exit(1)
	}
}
