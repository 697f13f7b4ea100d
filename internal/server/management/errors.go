package management

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// apiError is the body of an error in Quay's format: the format of RFC 7807, with additional
// members for older clients of Quay.
type apiError struct {
	Detail       string `json:"detail" doc:"The reason why this request failed"`
	ErrorMessage string `json:"error_message" doc:"The same as detail, for older clients of Quay"`
	ErrorType    string `json:"error_type" doc:"The kind of error" example:"not_found"`
	Title        string `json:"title" doc:"The same as error_type"`
	Type         string `json:"type" format:"uri-reference" doc:"Where the kind of error is described" example:"/api/v1/error/not_found"`
	Status       int    `json:"status" doc:"The HTTP status" example:"404"`
	Details      any    `json:"details,omitempty" doc:"Values that the error is about, by name, such as the id of a run"`
}

// errorTypes maps each kind of error to its description. Quay has all of these kinds, except
// for internal_error and unavailable, which only Purser has.
var errorTypes = map[string]string{
	"invalid_request":    "The request is wrong, or not possible now: detail says why.",
	"invalid_token":      "The request needs a log-in, or the one that it brings is not valid.",
	"insufficient_scope": "The account of the request may not do this.",
	"not_found":          "The request names something that doesn't exist.",
	"internal_error":     "The registry failed. Its log says why, under the request's X-Request-Id.",
	"unavailable":        "The registry can't do this now. The same request may succeed later.",
}

func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "invalid_token"
	case status == http.StatusForbidden:
		return "insufficient_scope"
	case status == http.StatusNotFound:
		return "not_found"
	case status < 500:
		return "invalid_request"
	case status == http.StatusServiceUnavailable, status == http.StatusInsufficientStorage:
		return "unavailable"
	}
	return "internal_error"
}

// newAPIError converts e to the format of the management API.
func newAPIError(e *oci.Error) *apiError {
	text := e.Message
	text = cmp.Or(text, e.Code.Message())
	p := describeError(e.HTTPStatus(), text)
	p.Details = e.Detail
	return p
}

func describeError(status int, text string) *apiError {
	kind := errorType(status)
	return &apiError{
		Detail: text, ErrorMessage: text, ErrorType: kind, Title: kind, Type: apiRoot + "/error/" + kind, Status: status,
	}
}

// MarshalError encodes an error for a client of the management API.
func MarshalError(e *oci.Error) []byte { return newAPIError(e).marshal() }

// ErrorBody encodes an error in the format of the API to which the path belongs: the management
// API's below /api/, otherwise the OCI API's. It is for errors that the server answers before
// there is an http.Request, for example because the request's header is malformed.
func ErrorBody(path string, status int, message string) []byte {
	e := server.Refusal(status, "%s", message)
	if strings.HasPrefix(path, prefix) {
		return MarshalError(e)
	}
	return oci.MarshalErrors(e)
}

// Error returns the text for the log.
func (p *apiError) Error() string { return p.Detail }

// GetStatus returns the HTTP status for huma.
func (p *apiError) GetStatus() int { return p.Status }

// GetHeaders returns additional headers for huma to send.
func (p *apiError) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {"2"}}
	}
	return nil
}

func (p *apiError) marshal() []byte {
	b, err := json.Marshal(p)
	if err != nil { // p.Details can't be encoded: answer without them
		q := *p
		q.Details = nil
		b, _ = json.Marshal(q) // can't fail: only strings and numbers are left
	}
	return b
}

// huma makes its own errors through global variables such as huma.NewError. init replaces these
// variables, so that huma's errors have Quay's format too. No other package of this process
// uses huma.
func init() {
	huma.NewError = func(status int, text string, errs ...error) huma.StatusError {
		if status == http.StatusUnprocessableEntity { // Quay answers 400
			status = http.StatusBadRequest
		}
		return describeError(status, cmp.Or(detailsOf(errs), text))
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, text string, errs ...error) huma.StatusError {
		p := huma.NewError(status, text, errs...)
		server.Observed(ctx.Context()).Err = p.(*apiError)
		return p
	}
}

// errorDescription describes a kind of error in Quay's format.
type errorDescription struct {
	Type        string `json:"type" format:"uri-reference" example:"/api/v1/error/not_found"`
	Title       string `json:"title" example:"not_found"`
	Description string `json:"description"`
}

// addErrorTypes adds the operation that describes a kind of error. The member "type" of each
// error answer is the URL at which this operation describes the kind of that error.
func (a *API) addErrorTypes() {
	type input struct {
		ErrorType string `path:"error_type" doc:"The kind of error" example:"not_found"`
	}
	type output struct{ Body errorDescription }
	add(a, auth.Anyone, huma.Operation{
		OperationID: "getErrorDescription", Method: http.MethodGet, Path: "/error/{error_type}", Tags: []string{"error"},
		Summary: "Describe a kind of error", Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		text, ok := errorTypes[in.ErrorType]
		if !ok {
			return nil, server.Refusal(http.StatusNotFound, "there is no kind of error that is called %q", in.ErrorType)
		}
		return &output{errorDescription{apiRoot + "/error/" + in.ErrorType, in.ErrorType, text}}, nil
	})
}
