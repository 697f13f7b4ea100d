package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

// forecastPolicy tells what policies would have deleted in the past.
func (a *API) forecastPolicy(ctx context.Context, in *api.ForecastInput) (*autoprune.Forecast, error) {
	policy, err := triedPolicy(in.Body)
	if err != nil {
		return nil, err
	}
	done, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return a.opt.Autoprune.Forecast(ctx, targetOf(in.PolicyAt), autoprune.ForecastOptions{
		Days: min(in.Days, autoprune.MaxForecastDays), Settings: in.Settings, Policy: policy,
	})
}
