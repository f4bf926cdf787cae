import type { Command } from 'commander';
import { recordReading } from '../../db/audit.ts';
import { type BatchInspection, type InspectedRequest, inspectBatch } from '../../db/requests/inspect.ts';
import { type Revealing, revealer, revealing } from './arguments.ts';
import { fields, maskedEmail, maskedUrl, type Run, sections, table } from './print.ts';

/** `batch`. */
export function addBatchCommands(program: Command, run: Run): void {
  const batch = program.command('batch').description('look into a batch');
  revealing(batch.command('show'), "emails, the webhook's URL and what its receiver answered")
    .description('its requests, what vendors answered, and its webhook deliveries')
    .argument('<BATCH>', 'batch id (bat_…)')
    .action((id: string, options: Revealing, command: Command) => {
      const by = revealer(options, command);
      return run(id, async (db) => {
        const found = await inspectBatch(db, id);
        const { organizationId } = found.batch;
        if (by) await recordReading(db, by, { action: 'batch.reveal', organizationId, subject: id });
        const data = presented(found, by !== null);
        return { data, text: textOf(data) };
      });
    });
}

type Presented = ReturnType<typeof presented>;

function presented({ batch, requests, deliveries }: BatchInspection, reveal: boolean) {
  return {
    ...batch,
    webhookUrl: batch.webhookUrl === null || reveal ? batch.webhookUrl : maskedUrl(batch.webhookUrl),
    requests: requests.map((request) => ({
      ...request,
      email: request.email === null || reveal ? request.email : maskedEmail(request.email),
      durationMs: request.settledAt && request.settledAt.getTime() - request.acceptedAt.getTime(),
    })),
    deliveries: deliveries.map((delivery) => ({
      ...delivery,
      attempts: delivery.attempts.map(({ responseExcerpt, ...attempt }) => ({
        ...attempt,
        // A receiver may well answer with what it was sent.
        ...(reveal ? { responseExcerpt: responseExcerpt?.toString('utf8') ?? null } : {}),
      })),
    })),
  };
}

function textOf(data: Presented): string {
  const parts = [
    fields({
      batch: data.id,
      organization: data.organizationId,
      'submitted as': data.submittedAs,
      'wanted type': data.wantedType,
      status: data.status,
      'requests final': `${data.completedCount}/${data.total}`,
      created: data.createdAt,
      'handed to Temporal': data.startedAt,
      updated: data.updatedAt,
      deadline: data.deadlineAt,
      'webhook mode': data.webhookMode,
      webhook: data.webhookUrl,
    }),
    'REQUESTS',
    table(data.requests, {
      REQUEST: ({ id }) => id,
      NPI: ({ npi }) => npi,
      STATUS: ({ status }) => status,
      REPLAYED: ({ replayed }) => replayed,
      CREDITS: ({ creditsUsed }) => creditsUsed,
      TYPE: ({ emailType }) => emailType,
      EMAIL: ({ email }) => email,
      REASON: ({ reason }) => reason,
      MS: ({ durationMs }) => durationMs,
    }),
    'VENDOR ATTEMPTS',
    table(distinctLookups(data.requests).flatMap(vendorLines), {
      NPI: ({ npi }) => npi,
      VENDOR: ({ vendor }) => vendor,
      N: ({ n }) => n,
      STATE: ({ state }) => state,
      REASON: ({ reason }) => reason,
      STARTED: ({ startedAt }) => startedAt,
      MS: ({ durationMs }) => durationMs,
      CREDITS: ({ credits }) => credits,
    }),
    'DELIVERIES',
    table(data.deliveries, {
      DELIVERY: ({ id }) => id,
      FOR: ({ requestId }) => requestId ?? 'the batch',
      STATE: ({ state }) => state,
      ATTEMPTS: ({ attempts }) => attempts.length,
      DECIDED: ({ decidedAt }) => decidedAt,
    }),
    'DELIVERY ATTEMPTS',
    table(
      data.deliveries.flatMap(({ id, attempts }) => attempts.map((attempt) => ({ ...attempt, id }))),
      {
        DELIVERY: ({ id }) => id,
        N: ({ n }) => n,
        STARTED: ({ startedAt }) => startedAt,
        MS: ({ durationMs }) => durationMs,
        HTTP: ({ statusCode }) => statusCode,
        REASON: ({ reason }) => reason,
        ANSWER: ({ responseExcerpt }) => responseExcerpt ?? null,
      },
    ),
  ];
  return sections(parts);
}

/** Requests of one lookup share its attempts: they are listed with the first. */
function distinctLookups(requests: Presented['requests']): Presented['requests'] {
  return [...new Map(requests.toReversed().map((request) => [request.lookupId, request])).values()].reverse();
}

function vendorLines({ npi, vendorAttempts }: Pick<InspectedRequest, 'npi' | 'vendorAttempts'>) {
  return vendorAttempts.map((attempt) => ({ ...attempt, npi }));
}
