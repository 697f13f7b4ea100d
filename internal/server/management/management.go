// Package management implements the management API under /api/v1/. The package generates an
// OpenAPI document of the API from its Go types. Where the registry Quay has a route for the
// same purpose, the route's path, answer and errors are like Quay's.
//
// Rules of the package:
//
//   - An operation is a value of package api, with its types and the access that it needs, and
//     serve binds it to the function that it runs. Requests over HTTP get there by the route, and
//     pages of the UI by Run, with the same checks of access and input. Operations that aren't
//     values yet are registered by add. The OpenAPI document shows the access as x-access.
//   - An operation only calls a function of a lower package and converts input and output, so
//     that the command line could call the same function.
//   - The API refuses a request with an unknown or invalid parameter or member of the body: a
//     misspelt dry_run must not start a real run. Only in bodies where Quay ignores unknown
//     members does the API ignore them too.
package management

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/boundedcache"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/runs"
	"github.com/purser-registry/purser/internal/webhook"
	"github.com/purser-registry/purser/loosefk"
)

const (
	// apiRoot is the prefix of every path of the management API.
	apiRoot = "/api/v1"
	// prefix is the prefix of all paths that this package answers. It is shorter than apiRoot,
	// so that this package also answers requests for other versions of the API, with an error
	// in the management API's format.
	prefix = "/api/"
	// maxBody limits the body of a request to the management API, in bytes.
	maxBody = 64 << 10
)

// Options configure an API.
type Options struct {
	Server  *server.Server   // required
	Catalog *catalog.Catalog // required
	Browser *browse.Browser  // of the catalog; required
	Quotas  *quota.Keeper    // those of the catalog; required
	Trash   *trash.Can       // of the catalog; required
	// Protection changes the rules that protect tags. Required.
	Protection *protection.Keeper
	// Store keeps the blobs' content. The caller must have wrapped it with blob.Mark, which
	// marks its errors as errors of the store, so that clients are told that the store
	// failed, and not the database. Required.
	Store blob.Store
	// Checks is the pool whose connections a check of the store keeps for as long as it runs:
	// check.DefaultParallel of them. Nil: it is the catalog's, and requests go without them.
	Checks *db.DB
	Log    *slog.Logger // default slog.Default()
	// GC configures runs of garbage collection that operators start through the API. The API
	// replaces GC.Store and GC.Log by the members Store and Log above. It also uses
	// GC.Collector to show the state of garbage collection, to explain why content is kept, to
	// retry failed reviews and to check the store. If GC.Collector is nil, these operations
	// panic.
	GC gc.CollectOptions
	// Audit is the audit log. The API writes operators' actions into it, and shows it to
	// clients. For changes made through package catalog, that package itself writes the audit
	// entries. Nil: there is no audit log.
	Audit *audit.Log
	// Autoprune manages auto-pruning and its policies. Nil: the API lacks the operations on
	// auto-pruning.
	Autoprune *autoprune.Pruner
	// Forecasts forecasts what Autoprune deletes. Nil: the API lacks the operation on forecasts.
	Forecasts *forecast.Forecaster
	// Holds keeps what is deployed. Nil: the API lacks the operations on holds.
	Holds *hold.Holds
	// Webhooks manages the webhooks of namespaces. Nil: the API lacks the operations on
	// webhooks.
	Webhooks *webhook.Sender
	// Pulls reads pull statistics. Nil: answers have none.
	Pulls *pullstats.Reader
	// Recorder says whether pulls are counted from the audit log or in Redis. Nil: this process
	// doesn't record pulls.
	Recorder *pullstats.Recorder
	// PullStats counts the pulls that are recorded in the audit log. Nil: pulls aren't counted.
	PullStats *pullstats.SyncWorker
	// RedisPulls adds the pulls that Redis has counted to the statistics in the database. Nil:
	// the registry doesn't use Redis.
	RedisPulls *redispulls.FlushWorker
	// Accounts keeps accounts, robots, teams and roles, and Passwords hashes passwords of new
	// accounts. If the server has access control, the API uses those of the access control
	// instead. Nil: the API has no operations on them.
	Accounts  *auth.Store
	Passwords *password.Hasher
	// LooseKeys gives access to the loose foreign keys. Nil: the API has no operations on
	// them.
	LooseKeys *LooseKeys
	// Clocks tells whether the clocks are fit to delete by. Nil: the API says that they are.
	Clocks *clock.Guard
	System System
}

// API is the management API. For each request, API itself finds the operation, checks the
// access and reads the body. Then the library huma parses and validates the operation's input,
// calls the operation and writes its output. huma also generates the OpenAPI document.
type API struct {
	opt        Options
	server     *server.Server
	catalog    *catalog.Catalog
	browser    *browse.Browser
	quotas     *quota.Keeper
	trash      *trash.Can
	protection *protection.Keeper
	store      blob.Store
	log        *slog.Logger
	started    time.Time
	turns      *limit.Turns                            // of operations that need much processor time
	platforms  *boundedcache.Cache[oci.Digest, string] // of configurations, by their digests
	searches   *limit.Turns                            // of searches, which take little and are waited for
	sums       *limit.Turns                            // of adding up the sizes of a page of namespaces

	huma     huma.API
	router   server.Router[methods]
	bound    map[string]*bound
	document func() (document, error)
	gc       *runs.List[gcReport]
	checks   *runs.List[checkReport]
	loose    *runs.List[*loosefk.Result]
}

// New makes the API with all its operations.
func New(o Options) (*API, error) {
	if o.Server == nil || o.Catalog == nil || o.Browser == nil || o.Quotas == nil || o.Trash == nil || o.Protection == nil || o.Store == nil {
		return nil, errors.New("management: a server, a catalog with its browser, quotas, trash and rules of protection, and a store are required")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.GC.Store, o.GC.Log = o.Store, o.Log
	a := &API{
		router: server.Router[methods]{Name: "repository", Escaped: true, AnySlash: true, Empty: true},
		opt:    o, server: o.Server, catalog: o.Catalog, browser: o.Browser, quotas: o.Quotas, trash: o.Trash, protection: o.Protection, store: o.Store, log: o.Log, started: time.Now(), turns: limit.NewTurns(0), searches: limit.NewTurns(0), sums: limit.NewTurns(0),
		gc:        runs.New[gcReport]("garbage collection", o.Log),
		bound:     make(map[string]*bound),
		platforms: boundedcache.New(boundedcache.Options[oci.Digest, string]{Entries: knownPlatforms}),
		checks:    runs.New[checkReport]("a check", o.Log),
		loose:     runs.New[*loosefk.Result]("a run of loose foreign keys", o.Log),
	}
	a.document = sync.OnceValues(a.describe)
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{
			Info: &huma.Info{
				Title: "Purser", Version: "1",
				Description: "The management API of the Purser registry. Where Quay has a route for something, it is Quay's. " +
					"The slashes of a repository's name may be written as they are or as %2F.",
			},
			Tags: tags,
			Components: &huma.Components{
				SecuritySchemes: securitySchemes,
				Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			},
		},
		Formats: huma.DefaultFormats, DefaultFormat: "application/json",
		// huma refuses unknown query parameters, because a misspelt dry_run must not start a
		// real run.
		RejectUnknownQueryParameters: true,
	}, a)
	if url := o.Server.ExternalURL(); url != "" {
		a.huma.OpenAPI().Servers = []*huma.Server{{URL: url}}
	}
	a.addDocument()
	a.addPage()
	a.addErrorTypes()
	a.addTags()
	a.addRepositories()
	a.addFind()
	a.addTrash()
	a.addNamespaces()
	a.addStars()
	a.addUser()
	a.addManifests()
	a.addSystem()
	a.addGC()
	a.addUsage()
	a.addChecks()
	a.addPolicies()
	a.addPruning()
	a.addLogs()
	a.addExports()
	a.addProtection()
	a.addSelectedTags()
	a.addHolds()
	a.addQuotas()
	a.addWebhooks()
	a.addPulls()
	a.addAccess()
	return a, nil
}

// Mount returns how a server mounts the API.
func (a *API) Mount() server.Mount {
	return server.Mount{Prefix: prefix, Handler: a, MarshalError: MarshalError, ReadsAreLogged: true, Browsers: true, Compress: true, Challenge: server.Challenge.Basic}
}

// Close cancels the runs that operators have started through this API, and waits until these
// runs or `ctx` end.
func (a *API) Close(ctx context.Context) {
	a.gc.Close(ctx)
	a.checks.Close(ctx)
	a.loose.Close(ctx)
}

// Keys of an operation's Metadata. streamKey says that the operation itself reads the body, which
// may be longer than maxBody and needn't be JSON: it then checks the Content-Type too, reads from
// server.Body, and takes the memory that it needs from the request's share.
const (
	accessKey = "access"
	streamKey = "stream"
	// ownMemoryKey says that the operation itself takes the memory that its answer needs.
	ownMemoryKey = "memory"
	// absentBodyKey names what stands in for a body that a client leaves out.
	absentBodyKey = "absent body"
	// bodyExampleKey has an example of a body that a client can't leave out (see needsBody).
	bodyExampleKey = "body example"
)

// checked is the Extensions of an operation that is registered with the access auth.Ping because
// its path doesn't say what it concerns. Its handler asks for this access then.
func checked(access auth.Access) map[string]any { return map[string]any{"x-access": access.String()} }

// add registers an operation at a path below apiRoot, with the access that it requires. The
// handler of the operation returns its errors instead of writing them. op.Errors lists only the
// statuses that are particular to this operation; add adds those that all operations have.
func add[I, O any](a *API, access auth.Access, op huma.Operation, handle func(ctx context.Context, in *I) (*O, error)) {
	op.Path = apiRoot + op.Path
	if access.Role() != auth.NoRole && !strings.Contains(op.Path, "{repository}") && !strings.Contains(op.Path, "{orgname}") &&
		!strings.HasPrefix(op.Path, apiRoot+"/user/") {
		access = auth.Operate // a role in the whole registry
	}
	if op.Metadata == nil {
		op.Metadata = make(map[string]any)
	}
	op.Metadata[accessKey] = access
	if op.Extensions == nil {
		op.Extensions = map[string]any{"x-access": access.String()}
	}
	switch access {
	case auth.Anyone:
	case auth.List, auth.Pull:
		op.Security = optionalSecurity
	default:
		op.Security = requiredSecurity
	}
	op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusServiceUnavailable)
	op.Responses = make(map[string]*huma.Response)
	// API has read the body into memory before huma sees it. huma would by default set a read
	// deadline on the connection, which could end the request while the handler works.
	op.BodyReadTimeout = -1
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			server.Observed(ctx).Err = err
			return nil, newAPIError(server.Answer(ctx, err))
		}
		return out, nil
	})
	delete(op.Responses, "422") // huma's own status for invalid input; here it is 400
}

// ServeHTTP answers one request. It implements huma.Adapter.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	op, err := a.admit(w, r)
	if err != nil {
		a.server.Fail(w, r, err)
		return
	}
	answer, err := a.reserve(op, w, r)
	if err != nil {
		a.server.Fail(w, r, err)
		return
	}
	op.handle(humago.NewContext(op.Operation, r, answer))
	answer.end()
}

// admit returns the operation for a request. It first checks the path, the query and the
// client's access, and reads the body. Its errors are meant for the client.
func (a *API) admit(w http.ResponseWriter, r *http.Request) (*operation, error) {
	o := server.Observed(r.Context())
	found := a.router.Match(r.URL.EscapedPath())
	rt, values := found.Route, found.Values
	if rt == nil {
		return nil, server.NothingAt(r)
	}
	o.Route = rt.Pattern
	op := rt.Do.of(r.Method)
	if op == nil {
		if found.NameParts > 1 && values["repository"] != "" {
			if err := a.checkName(r, auth.Pull, values["repository"]); err != nil {
				return nil, err
			}
		}
		w.Header().Set("Allow", rt.Do.allow())
		return nil, server.Refusal(http.StatusMethodNotAllowed, "%s is not possible at %s, but %s", r.Method, rt.Pattern, rt.Do.allow())
	}
	o.Method = r.Method
	if strings.HasPrefix(rt.Pattern, apiRoot+"/user/") {
		values["orgname"] = userNamespace(r.Context()) // for inputs that name their place by api.At
	}
	err := checkParameters(r, values)
	if err != nil {
		return nil, err
	}
	repository, named := values["repository"]
	access, _ := op.Metadata[accessKey].(auth.Access)
	switch {
	case named && found.NameParts > 2:
		err = a.checkName(r, access, repository)
	case named && oci.ValidateName(repository) != nil:
		err = oci.Errorf(oci.NameInvalid, "%v", oci.ValidateName(repository))
	case access == auth.List: // the answer shows only what the client may read
		if err = a.server.Authorize(r.Context(), access, auth.Registry); err == nil {
			a.server.OfferLogIn(r.Context(), access)
		}
	default:
		err = a.server.Authorize(r.Context(), access, resource(values))
	}
	if err != nil {
		return nil, err
	}
	for name, value := range values {
		r.SetPathValue(name, value)
	}
	if op.Metadata[streamKey] == true {
		return op, nil
	}
	absent, _ := op.Metadata[absentBodyKey].(string)
	return op, a.readBody(w, r, absent)
}

// resource returns what a request concerns whose path has these values.
func resource(values map[string]string) auth.Resource {
	switch {
	case values["repository"] != "":
		return auth.OfRepository(values["repository"])
	case values["orgname"] != "":
		return auth.OfNamespace(values["orgname"])
	}
	return auth.Registry
}

// checkName checks a repository's name whose slashes the client has written without escaping.
// In such a path, the end of the name may be a misspelt operation: /repository/a/tga may mean a
// repository a/tga, or an operation on the repository a. Therefore checkName returns an error
// unless a repository with the whole name exists.
func (a *API) checkName(r *http.Request, access auth.Access, repository string) error {
	if oci.ValidateName(repository) != nil {
		return server.NothingAt(r)
	}
	if err := a.server.Authorize(r.Context(), access, auth.OfRepository(repository)); err != nil {
		return err
	}
	known, err := a.catalog.HasRepository(r.Context(), repository)
	if err == nil && !known {
		err = server.Refusal(http.StatusNotFound, "there is nothing at %s: no operation has this path, and repository %s is not known to this registry "+
			"(write %%2F for the slashes of its name if that is meant)", r.URL.Path, repository)
	}
	return err
}

// missingPart is the error about a variable of a path without a value.
func missingPart(name string) *oci.Error {
	return server.Refusal(http.StatusBadRequest, "path.%s: required path parameter is missing", name)
}

// mayBeEmpty are the parameters of the query that say something by an empty value.
var mayBeEmpty = []string{"replaces"}

// checkParameters returns an error for the client if a parameter of the path is empty, or one of the
// path or the query contains text that PostgreSQL can't store. In a request that changes something no
// parameter of the query may be empty: it would count as absent, and a client whose condition came out
// empty, such as if_digest, would change what it wanted to spare.
func checkParameters(r *http.Request, values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] == "" {
			return missingPart(name)
		}
		if err := server.CheckText(name, values[name]); err != nil {
			return err
		}
	}
	if err := server.CheckRawQuery(r.URL.RawQuery); err != nil || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return err
	}
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if slices.Contains(query[name], "") && !slices.Contains(mayBeEmpty, name) {
			return badQuery(name, "it is empty: leave it out, or give it a value")
		}
	}
	return nil
}

// readBody reads the body into memory. It returns an error if the Content-Type isn't JSON: a
// browser lets forms of other sites send bodies of some other types without asking the server
// first. If there is no body, `absent` stands in for it.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, absent string) error {
	given := r.Header.Get("Content-Type")
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.ContentLength == 0 && given == "" {
		setBody(r, absent)
		return nil
	}
	if t, _, err := mime.ParseMediaType(given); err != nil || t != "application/json" {
		return server.Refusal(http.StatusUnsupportedMediaType, "the Content-Type is %q and should be application/json", given)
	}
	tooLong := server.Refusal(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBody)
	if r.ContentLength > maxBody {
		return tooLong
	}
	in := a.server.Body(w, r)
	body := in.Hold(maxBody+1, 1)
	if err := in.LostError(); err != nil {
		return err
	}
	if len(body) > maxBody {
		return tooLong
	}
	if len(body) == 0 {
		body = []byte(absent)
	}
	if err := checkBody(body); err != nil {
		return err
	}
	setBody(r, string(body))
	return nil
}

func setBody(r *http.Request, body string) {
	if body == "" {
		r.Body = http.NoBody
		return
	}
	r.Body = io.NopCloser(strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json") // huma compares the value literally
}

// document is the OpenAPI document as JSON and as YAML.
type document struct{ json, yaml []byte }

func (a *API) describe() (d document, err error) {
	if d.json, err = json.Marshal(a.huma.OpenAPI()); err != nil {
		return d, err
	}
	d.yaml, err = a.huma.OpenAPI().YAML()
	return d, err
}

// raw is an answer whose body is already encoded.
type raw struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}
