// ogen: one method per operation. Responses, including errors, are distinguished by their type.
package main

import (
	"context"
	"net/url"

	"clients"
	"clients/generated/ogen"

	"github.com/go-faster/jx"
	"github.com/google/uuid"
	"github.com/ogen-go/ogen/ogenerrors"
)

// key is an API key, which the client sends as a bearer token.
type key string

func (k key) Bearer(context.Context, ogen.OperationName) (ogen.Bearer, error) {
	return ogen.Bearer{Token: string(k)}, nil
}

func (k key) ApiKey(context.Context, ogen.OperationName) (ogen.ApiKey, error) {
	return ogen.ApiKey{}, ogenerrors.ErrSkipClientSecurity
}

func clientOf(apiKey string) *ogen.Client {
	return clients.Must(ogen.NewClient(clients.BaseURL, key(apiKey)))
}

var (
	ctx    = context.Background()
	client = clientOf(clients.APIKey)
)

func completed(batchID string) ogen.Envelope {
	params := ogen.GetBatchParams{BatchID: batchID, Prefer: ogen.NewOptString("wait=55")}
	for {
		poll := clients.Must(client.GetBatch(ctx, params))
		envelope, ok := poll.(*ogen.EnvelopeHeaders)
		clients.Assert(ok, poll)
		if envelope.Response.Batch.Status == ogen.BatchStatusCompleted {
			return envelope.Response
		}
	}
}

func submitSingle(body ogen.SingleSubmit) ogen.Accepted {
	submit := clients.Must(client.SubmitSingle(ctx, &body, ogen.SubmitSingleParams{}))
	accepted, ok := submit.(*ogen.AcceptedHeaders)
	clients.Assert(ok, submit)
	return accepted.Response
}

func submitBulk(target url.URL) ogen.Accepted {
	body := ogen.BulkSubmit{
		Npis:                []string{clients.Found, clients.NotFound},
		EnrichmentEmailType: ogen.NewOptNilRequestedType(ogen.RequestedTypeProfessional),
		Webhook: ogen.NewOptNilWebhookTarget(ogen.WebhookTarget{
			URL:  target,
			Mode: ogen.NewOptNilWebhookMode(ogen.WebhookModeBatch),
		}),
		CustomData: ogen.NewOptNilCustomData(ogen.CustomData{"order": jx.Raw("17")}),
	}
	params := ogen.SubmitBulkParams{IdempotencyKey: ogen.NewOptString(uuid.NewString())}
	submit := clients.Must(client.SubmitBulk(ctx, &body, params))
	accepted, ok := submit.(*ogen.AcceptedHeaders)
	clients.Assert(ok, submit)
	return accepted.Response
}

// oneCall returns the results of a submit: at once if the response is a 200, and by polls after a 202.
func oneCall(npi string) ogen.Envelope {
	params := ogen.SubmitSingleParams{Prefer: ogen.NewOptString("wait=55, return=representation")}
	submit := clients.Must(client.SubmitSingle(ctx, &ogen.SingleSubmit{Npi: npi}, params))
	switch response := submit.(type) {
	case *ogen.SubmitResultsHeaders:
		return response.Response
	case *ogen.AcceptedHeaders:
		return completed(response.Response.BatchID)
	}
	clients.Assert(false, submit)
	return ogen.Envelope{}
}

func main() {
	target := *clients.Must(url.Parse(clients.WebhookURL))
	alone := completed(submitSingle(ogen.SingleSubmit{Npi: clients.Found}).BatchID)
	clients.Assert(alone.Webhook.Null && alone.CustomData.Null, alone)

	again := oneCall(clients.Found)
	clients.Assert(again.Data[0].Replayed, again)

	bulk := submitBulk(target)
	both := completed(bulk.BatchID)
	clients.Assert(string(both.CustomData.Value["order"]) == "17", both)
	found, notFound := both.Data[0], both.Data[1]
	clients.Assert(found.Status == ogen.RequestStatusCompleted, found)
	clients.Assert(found.EmailType.Value == ogen.EmailTypeProfessional, found)
	clients.Assert(notFound.Status == ogen.RequestStatusNotFound, notFound)
	clients.Assert(notFound.EmailType.Null, notFound)

	one := clients.Must(client.GetRequest(ctx, ogen.GetRequestParams{RequestID: bulk.Requests[0].RequestID}))
	envelope, ok := one.(*ogen.EnvelopeHeaders)
	clients.Assert(ok, one)
	clients.Assert(envelope.Response.Data[0].EmailStatus.Value == "valid", one)

	nulls := ogen.SingleSubmit{Npi: clients.Found}
	nulls.EnrichmentEmailType.SetToNull()
	nulls.CustomData.SetToNull()
	webhook := ogen.WebhookTarget{URL: target}
	webhook.Mode.SetToNull()
	nulls.Webhook.SetTo(webhook)
	spelledOut := completed(submitSingle(nulls).BatchID)
	clients.Assert(spelledOut.Webhook.Value.Mode.Value == ogen.WebhookModeRealTime, spelledOut)

	balance := clients.Must(client.GetCredits(ctx))
	credits, ok := balance.(*ogen.CreditsHeaders)
	clients.Assert(ok && credits.Response.Used == 1, balance)

	page := clients.Must(client.GetDeliveries(ctx, ogen.GetDeliveriesParams{
		BatchID: bulk.BatchID,
		Limit:   ogen.NewOptInt(1),
	}))
	deliveries, ok := page.(*ogen.DeliveriesHeaders)
	clients.Assert(ok && deliveries.Response.Deliveries[0].RequestID.Null, page)

	handleErrors()
}

func handleErrors() {
	single := ogen.SingleSubmit{Npi: clients.Found}
	poor := clients.Must(clientOf(clients.PoorKey).SubmitSingle(ctx, &single, ogen.SubmitSingleParams{}))
	insufficient, ok := poor.(*ogen.InsufficientCreditsHeaders)
	clients.Assert(ok && insufficient.Response.Shortfall == 1, poor)

	unknown := clients.Must(client.GetBatch(ctx, ogen.GetBatchParams{BatchID: clients.Unknown}))
	missing, ok := unknown.(*ogen.NotFoundHeaders)
	clients.Assert(ok && missing.Response.Code == ogen.NotFoundProblemCodeBatchNotFound, unknown)

	empty := ogen.BulkSubmit{Npis: []string{}}
	invalid := clients.Must(client.SubmitBulk(ctx, &empty, ogen.SubmitBulkParams{}))
	refused, ok := invalid.(*ogen.InvalidHeaders)
	clients.Assert(ok && refused.Response.Detail[0].Loc[1].String == "npis", invalid)

	busy := clients.Must(clientOf(clients.BusyKey).GetCredits(ctx))
	limited, ok := busy.(*ogen.RateLimitedHeaders)
	clients.Assert(ok && limited.Response.Code == ogen.RateLimitedProblemCodeRateLimited, busy)
	clients.Assert(limited.RetryAfter > 0, busy)
}
