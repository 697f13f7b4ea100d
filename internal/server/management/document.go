package management

import "github.com/danielgtaylor/huma/v2"

// tags are the groups into which the OpenAPI document and the HTML page divide the operations.
var tags = []*huma.Tag{
	{Name: "autoprune", Description: "Policies that delete tags, previews of them, their runs"},
	{Name: "check", Description: "Comparison of the database with the blob store"},
	{Name: "error", Description: "The kinds of errors and their meaning"},
	{Name: "gc", Description: "Garbage collection: its state, runs by hand, why something is kept"},
	{Name: "hold", Description: "What is deployed somewhere and stays: reports, and who holds what"},
	{Name: "logs", Description: "The audit log"},
	{Name: "loosefk", Description: "Cleaning up after deleted repositories and namespaces"},
	{Name: "manifest", Description: "What manifests consist of, and what refers to them"},
	{Name: "namespace", Description: "Namespaces, which are Quay's organizations: the first parts of repositories' names"},
	{Name: "pullstatistics", Description: "Statistics of pulls"},
	{Name: "permission", Description: "Roles of accounts and teams in repositories and namespaces"},
	{Name: "trash", Description: "Deleted repositories and namespaces that can be restored"},
	{Name: "quota", Description: "Limits on the bytes, repositories and tags of namespaces"},
	{Name: "repository", Description: "Repositories"},
	{Name: "robot", Description: "Robots, which are accounts for programs, and the tokens of other issuers that log in as them"},
	{Name: "system", Description: "The health of the registry"},
	{Name: "tag", Description: "Tags"},
	{Name: "tagprotection", Description: "Rules that keep tags as they are"},
	{Name: "team", Description: "Teams of namespaces, and the people who have rights there"},
	{Name: "token", Description: "Personal tokens and log-ins of the client's account"},
	{Name: "user", Description: "People's accounts"},
	{Name: "webhook", Description: "Webhooks, which are told of pushes, pulls, deletions and garbage collection in a namespace"},
}

// securitySchemes are the ways in which clients authenticate.
var securitySchemes = map[string]*huma.SecurityScheme{
	"basic": {Type: "http", Scheme: "basic",
		Description: "Name and password of an account, or its name and a personal token. For a robot: its name and its secret. " +
			"A registry without access control ignores it"},
	"bearer": {Type: "http", Scheme: "bearer",
		Description: "A personal token, or the secret of a robot. A registry without access control ignores it"},
	"session": {Type: "apiKey", In: "cookie", Name: "__Host-purser_session",
		Description: "The log-in of a browser. A registry without access control ignores it"},
}

// requiredSecurity says in the OpenAPI document that a client must authenticate in one of these
// ways. optionalSecurity says that it needn't, as far as public repositories are concerned: the
// first of the alternatives is empty (OpenAPI 3.1, "Security Requirement Object").
var (
	requiredSecurity = []map[string][]string{{"basic": {}}, {"bearer": {}}, {"session": {}}}
	optionalSecurity = append([]map[string][]string{{}}, requiredSecurity...)
)
