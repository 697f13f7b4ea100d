// Package api has the operations of the management API as values ([Operation]), the types of their
// inputs and answers, and the client by which the command line calls them. The server binds an
// operation to a function, a command calls it over HTTP, and a page of the UI runs it in the
// process. So its path, its access and its words are in one place.
//
// The OpenAPI document has a schema for each of the types. The schema has the name of the Go type,
// and its descriptions come from the struct tags of the type's fields.
package api
