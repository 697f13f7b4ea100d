package e2e

import (
	"context"
	"os"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	orasoci "oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// orasAccess is a program with the library oras-go.
func orasAccess(t *testing.T, r *registry, dir string) accessClient {
	client := &auth.Client{Cache: auth.NewCache()}
	repository := func(name string) *remote.Repository {
		repo := orasRepository(t, r, name)
		repo.Client = client
		return repo
	}
	pull := func(repo, tag string) error {
		_, err := oras.Copy(t.Context(), repository(repo), tag, memory.New(), "", oras.DefaultCopyOptions)
		return err
	}
	return accessClient{
		login: func(name, pass string) error {
			client.Credential = auth.StaticCredential(r.host, auth.Credential{Username: name, Password: pass})
			reg, err := remote.NewRegistry(r.host)
			if err != nil {
				return err
			}
			reg.PlainHTTP, reg.Client = true, client
			return reg.Ping(t.Context())
		},
		push: func(repo, tag string) error {
			layout, err := orasoci.NewFromFS(t.Context(), os.DirFS(dir))
			if err != nil {
				return err
			}
			_, err = oras.Copy(t.Context(), layout, "v1", repository(repo), tag, oras.DefaultCopyOptions)
			return err
		},
		pull: pull,
		tags: func(repo string) (tags []string, err error) {
			err = repository(repo).Tags(t.Context(), "", func(page []string) error { tags = append(tags, page...); return nil })
			return tags, err
		},
		catalog: func() (list []string, err error) {
			reg, err := remote.NewRegistry(r.host)
			if err != nil {
				return nil, err
			}
			reg.PlainHTTP, reg.Client = true, client
			err = reg.Repositories(t.Context(), "", func(page []string) error { list = append(list, page...); return nil })
			return list, err
		},
		copies: func(from, to string) error {
			o := oras.DefaultCopyOptions
			o.MountFrom = func(context.Context, v1.Descriptor) ([]string, error) { return []string{from}, nil }
			_, err := oras.Copy(t.Context(), repository(from), "v1", repository(to), "", o)
			return err
		},
	}
}
