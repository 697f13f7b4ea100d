package command

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/internal/config"
)

// configVariable is the environment variable that names the configuration file. The flag
// --config overrides it.
const configVariable = "PURSER_CONFIG"

// Source reads the configuration from the configuration file, the environment and the
// flags.
type Source struct {
	Environ  []string
	file     string
	replaced []replacement
}

// replacement is the value of a setting that the process knows by itself.
type replacement struct{ key, value, from string }

// Replace makes Load take `value` for the setting `key`, whatever the file, the environment and
// the flags say. `from` says in errors where the value comes from.
func (s *Source) Replace(key, value, from string) {
	s.replaced = append(s.replaced, replacement{key, value, from})
}

// clientVariables are environment variables that Source.Client reads. They aren't settings.
var clientVariables = []string{api.ServerVariable, api.TokenVariable, api.TokenFileVariable}

// settingFlags are the command-line flags that set a setting; `key` is the setting's key.
var settingFlags = []struct{ name, key string }{
	{"data-dir", "data_dir"},
	{"addr", "http.addr"},
	{"debug-addr", "http.debug_addr"},
	{"profile-addr", "http.profile_addr"},
	{"allow-anonymous", "http.allow_anonymous"},
}

// addFlags adds the flags that all commands have.
func (s *Source) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.file, "config", "", "read settings from this YAML `FILE` (default: $"+configVariable+", else none)")
	flags.String("data-dir", "", "keep data in this `DIR`ectory")
}

// AddServeFlags adds the flags of the serve command.
func AddServeFlags(flags *pflag.FlagSet) {
	flags.String("addr", "", "serve the registry on `HOST:PORT` (default 127.0.0.1:5000)")
	flags.String("debug-addr", "", "serve metrics and health on `HOST:PORT`, or \"off\" (default 127.0.0.1:5001)")
	flags.String("profile-addr", "", "serve profiles on `HOST:PORT`, or \"off\" (default --debug-addr where that is on loopback)")
	flags.Bool("allow-anonymous", false, "allow addresses that other machines reach although nobody needs to log in")
}

// Load returns the configuration for `cmd`. It returns the configuration even if there is
// an error, which joins all problems that Load found.
func (s *Source) Load(cmd *cobra.Command) (*config.Config, error) {
	file := s.file
	isFile := func(entry string) bool { return strings.HasPrefix(entry, configVariable+"=") }
	if i := slices.IndexFunc(s.Environ, isFile); i >= 0 && !cmd.Flags().Changed("config") {
		_, file, _ = strings.Cut(s.Environ[i], "=")
	}
	environ := slices.DeleteFunc(slices.Clone(s.Environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return isFile(entry) || slices.Contains(clientVariables, name)
	})
	cfg, err := config.Load(file, environ)
	if errors.Is(err, fs.ErrNotExist) && cmd.Flags().Changed("config") {
		err = fmt.Errorf("flag --config: %w", err)
	}
	problems := []error{err}
	for _, f := range settingFlags {
		if flag := cmd.Flags().Lookup(f.name); flag != nil && flag.Changed {
			problems = append(problems, cfg.Set(f.key, flag.Value.String(), "flag --"+f.name))
		}
	}
	for _, r := range s.replaced {
		problems = append(problems, cfg.Set(r.key, r.value, r.from))
	}
	_, policy := DefaultPolicy(cfg)
	problems = append(problems, cfg.Validate(), policy)
	err = errors.Join(problems...)
	if err != nil && ofFlag(err) {
		err = Usagef("%w", err)
	}
	return cfg, err
}

// ofFlag says whether `err`, an error of Load, contains a problem with a command-line flag.
func ofFlag(err error) bool {
	for line := range strings.Lines(err.Error()) {
		if strings.HasPrefix(line, "flag --") {
			return true
		}
	}
	return false
}

// DefaultPolicy parses the setting autoprune.default_policy. It returns nil if the setting
// is empty.
func DefaultPolicy(cfg *config.Config) (*autoprune.Policy, error) {
	if cfg.Autoprune.DefaultPolicy == "" {
		return nil, nil
	}
	policy, err := autoprune.ParsePolicy([]byte(cfg.Autoprune.DefaultPolicy))
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", cfg.Source(autoprune.SettingName), autoprune.SettingName, err)
	}
	return &policy, nil
}
