package management

import "github.com/danielgtaylor/huma/v2"

// tags are the groups into which the OpenAPI document and the HTML page divide the operations.
var tags = []*huma.Tag{
	{Name: "autoprune", Description: "Policies that delete tags, previews of them, their runs"},
	{Name: "check", Description: "Comparison of the database with the blob store"},
	{Name: "error", Description: "The kinds of errors and their meaning"},
	{Name: "gc", Description: "Garbage collection: its state, runs by hand, why something is kept"},
	{Name: "logs", Description: "The audit log"},
	{Name: "loosefk", Description: "Cleaning up after deleted repositories and namespaces"},
	{Name: "manifest", Description: "What manifests consist of, and what refers to them"},
	{Name: "namespace", Description: "Namespaces, which are Quay's organizations: the first parts of repositories' names"},
	{Name: "pullstatistics", Description: "Statistics of pulls"},
	{Name: "repository", Description: "Repositories"},
	{Name: "system", Description: "The health of the registry"},
	{Name: "tag", Description: "Tags"},
	{Name: "tagprotection", Description: "Rules that keep tags as they are"},
	{Name: "webhook", Description: "Webhooks, which are told of pushes, pulls, deletions and garbage collection in a namespace"},
}

// securitySchemes are the ways in which clients will authenticate when the registry has
// accounts. It has none yet, so any client that reaches the registry may do everything.
var securitySchemes = map[string]*huma.SecurityScheme{
	"basic": {Type: "http", Scheme: "basic",
		Description: "Name and password of an account. There are no accounts yet, and the registry ignores it"},
	"bearer": {Type: "http", Scheme: "bearer",
		Description: "A token of an account. There are no accounts yet, and the registry ignores it"},
}

// optionalSecurity says in the OpenAPI document that a client may send a request without
// authentication: the first of the alternatives that it lists is empty (OpenAPI 3.1, "Security
// Requirement Object").
var optionalSecurity = []map[string][]string{{}, {"basic": {}}, {"bearer": {}}}
