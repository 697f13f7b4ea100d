package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// TokenView is a personal token or a refresh token in answers. The members that Quay's API has too come first, then
// Purser's own.
type TokenView struct {
	UUID         string  `json:"uuid" format:"uuid"`
	Title        string  `json:"title"`
	LastAccessed *string `json:"last_accessed" doc:"last_used_at in Quay's format"`
	Created      string  `json:"created" doc:"created_at in Quay's format"`
	Expiration   *string `json:"expiration" doc:"expires_at in Quay's format"`
	Code         string  `json:"token_code,omitempty" doc:"The token itself. Only the answer to its creation has it"`

	Kind         string     `json:"kind" enum:"personal,refresh" doc:"Whether the person has made it, or a client such as docker has got it at a log-in by password"`
	Repositories []string   `json:"repositories" doc:"The only repositories that it may use, as patterns; null: no such limit"`
	Actions      []string   `json:"actions" doc:"The only actions that it may do; null: no such limit"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at" doc:"Null: never"`
	LastUsedAt   *time.Time `json:"last_used_at" doc:"To within some minutes; null: never"`
}

// TokenAnswer is the answer about a personal token.
type TokenAnswer struct {
	Token TokenView `json:"token"`
}

// TokenList is a page of the tokens of an account.
type TokenList struct {
	Tokens       []TokenView `json:"tokens" nullable:"false" doc:"Newest first"`
	OnlyExpiring bool        `json:"only_expiring"`
	NextPage     string      `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l TokenList) Entries() ([]TokenView, string) { return l.Tokens, l.NextPage }

// NewTokenForm is the body of a request to make a personal token.
type NewTokenForm struct {
	Title        string     `json:"title" minLength:"1" maxLength:"255" doc:"A line for people" example:"laptop"`
	Repositories []string   `json:"repositories,omitzero" maxItems:"100" doc:"The only repositories that it may use: paths, in which * stands for any characters but a slash and ** for any characters. Absent or null: no such limit; an empty list: none" example:"[\"acme/app\",\"acme/tools/**\"]"`
	Actions      []string   `json:"actions,omitzero" doc:"The only actions that it may do, of pull, push, overwrite, delete, maintain, admin, operate. Absent or null: no such limit; an empty list: none" example:"[\"pull\"]"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty" doc:"When it ends. Absent or null: never, or with the token of the request"`
}

// TransformSchema adds the read-only members of a token.
func (NewTokenForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "uuid", "kind", "last_accessed", "created", "expiration", "token_code", "created_at", "last_used_at")
}

// SessionView is a log-in of a browser.
type SessionView struct {
	ID         string    `json:"id" format:"uuid"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at" doc:"To within some minutes"`
	ExpiresAt  time.Time `json:"expires_at" doc:"It ends then, or earlier if it isn't used"`
	Address    string    `json:"address" doc:"From where the person has logged in"`
	UserAgent  string    `json:"user_agent" doc:"The browser, as it names itself"`
	Current    bool      `json:"current" doc:"Whether this request was sent with it"`
}

// SessionList is a page of the log-ins of browsers.
type SessionList struct {
	Sessions []SessionView `json:"sessions" nullable:"false" doc:"Newest first"`
	NextPage string        `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l SessionList) Entries() ([]SessionView, string) { return l.Sessions, l.NextPage }

// Inputs of the operations on tokens and log-ins.
type (
	TokenQuery struct {
		Paging
		Expiring bool `query:"expiring" doc:"True: only tokens that end within 7 days"`
	}
	TokenNew  struct{ Body NewTokenForm }
	TokenItem struct {
		UUID string `path:"token_uuid" doc:"Identifier of the token" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
	SessionItem struct {
		ID string `path:"session_id" doc:"Identifier of the log-in" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
)

// tokenOperation describes an operation on what the client's account has logged in with.
func tokenOperation[I, O any](id, method, path, summary, description string) Operation[I, O] {
	return accessOperation[I, O]("token", id, method, "/user"+path, auth.LoggedIn, summary, description)
}

// The operations on the tokens of the client's account, which have Quay's paths, and on its log-ins.
// Quay calls personal tokens app specific tokens. It has no refresh tokens; here they are listed and
// revoked too, so that people see what a lost disk may have.
var (
	ListTokens = tokenOperation[TokenQuery, TokenList]("listAppTokens", http.MethodGet, "/apptoken",
		"List the personal tokens and the refresh tokens of the client's account", "")
	CreateToken = tokenOperation[TokenNew, TokenAnswer]("createAppToken", http.MethodPost, "/apptoken", "Make a personal token of the client's account",
		"It stands in for the password, with the roles of the account as far as its limits allow. Only this answer has it. "+
			"A token can make only tokens with the same limits or narrower ones, which end when it ends or earlier; they inherit what the request leaves out.")
	GetToken = tokenOperation[TokenItem, TokenAnswer]("getAppToken", http.MethodGet, "/apptoken/{token_uuid}",
		"Get a personal token or a refresh token of the client's account", "")
	RevokeToken = tokenOperation[TokenItem, None]("revokeAppToken", http.MethodDelete, "/apptoken/{token_uuid}",
		"Revoke a personal token or a refresh token of the client's account", "")

	ListSessions = tokenOperation[Paging, SessionList]("listSessions", http.MethodGet, "/sessions", "List the log-ins of browsers to the client's account", "")
	EndSession   = tokenOperation[SessionItem, None]("endSession", http.MethodDelete, "/sessions/{session_id}", "End a log-in of a browser", "")
)
