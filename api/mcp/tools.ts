import Joi from 'joi';
import { idPattern } from '../../db/connection/ids.ts';
import {
  BATCH_STATUSES,
  CHECK_RESULTS,
  REQUEST_STATUSES,
  REQUESTED_TYPES,
} from '../../db/words.ts';
import { boundedList, MAX_CHECKED } from '../http/validation.ts';
import { checkNpis } from './check-tool.ts';
import TEXTS from './descriptions.json' with { type: 'json' };
import { getResults, MAX_BATCHES } from './results-tool.ts';
import { submitNpis } from './submit-tool.ts';
import { fillText, type ToolCall } from './tool-call.ts';

// The tools of the MCP server (api/docs/assistants.md). The Joi schemas check the arguments and the
// clients get them as JSON Schema.

const LISTED_BATCHES = 20;

/** A tool. Its description is in descriptions.json. */
interface Tool<T = never> {
  readonly title: string;
  readonly input: Joi.ObjectSchema<T>;
  readonly output: Joi.ObjectSchema;
  /** True if the tool changes nothing and costs no credits. */
  readonly isReadOnly: boolean;
  readonly run: (call: ToolCall, given: T) => Promise<object>;
}

/** Checks the types of one tool, and forgets them. */
function tool<T>(one: Tool<T>): Tool {
  return one as unknown as Tool;
}

const count = Joi.number().integer().required();
const text = Joi.string().required();
const status = text.valid(...BATCH_STATUSES);

const npi = Joi.string()
  .pattern(/^[0-9]{10}$/)
  .messages({ 'string.pattern.base': '{{#label}} must have exactly 10 digits' });
// A client sends longer lists in parts.
const npis = list(npi, MAX_CHECKED, TEXTS.arguments.npis);
const batchId = Joi.string()
  .pattern(new RegExp(idPattern('bat')))
  .messages({
    'string.pattern.base': '{{#label}} must be a complete id such as bat_01…',
  });
const type = Joi.string()
  .valid(...REQUESTED_TYPES)
  .default('any')
  .description(TEXTS.arguments.type);

const results = {
  status: status.description(TEXTS.results.status),
  total: count,
  completed_count: count.description(TEXTS.results.completed_count),
  found: count,
  not_found: count,
  failed: count,
  credits_used: count.description(TEXTS.results.credits_used),
  results: Joi.array()
    .items(
      Joi.object({
        npi: text,
        status: text.valid(...REQUEST_STATUSES),
        email: text.allow(null),
        email_type: text.allow(null).description(TEXTS.results.email_type),
        email_last_validated: text.allow(null),
        replayed: Joi.boolean().required().description(TEXTS.results.replayed),
      }),
    )
    .required(),
};

/** All tools by their names, in the order in which clients see them. */
export const TOOLS: Readonly<Record<string, Tool>> = {
  check_npis: tool({
    title: 'Check NPIs',
    input: Joi.object<{ readonly npis: string[] }>({ npis }),
    output: Joi.object({
      totals: Joi.object(counts(CHECK_RESULTS)).required(),
      max_credits: Joi.object(counts(REQUESTED_TYPES))
        .required()
        .description(TEXTS.results.max_credits),
      data: Joi.array()
        .items(
          Joi.object({
            npi: text,
            result: text.valid(...CHECK_RESULTS),
            free_types: Joi.array().items(Joi.string()).required(),
            name: text.allow(null),
            city: text.allow(null),
            state: text.allow(null),
          }),
        )
        .required(),
    }),
    isReadOnly: true,
    run: (call, { npis }) => checkNpis(call, npis),
  }),
  submit_npis: tool({
    title: 'Find emails',
    input: Joi.object({
      npis,
      type,
      max_credits: Joi.number()
        .integer()
        .min(0)
        .required()
        .description(TEXTS.arguments.max_credits),
      attempt: Joi.number()
        .integer()
        .min(1)
        .default(1)
        .description(TEXTS.arguments.attempt),
    }),
    output: Joi.object({
      ...optional(results),
      status: status.description(forMany(TEXTS.submitted.status)),
      total: count.optional().description(forMany(TEXTS.submitted.total)),
      batch_ids: Joi.array().items(text).required(),
      submitted: count.description(TEXTS.submitted.submitted),
      not_submitted: count,
      skipped: Joi.array().items(text).required().description(TEXTS.submitted.skipped),
      may_cost: count.description(TEXTS.submitted.may_cost),
      next: text.description(TEXTS.submitted.next),
    }),
    isReadOnly: false,
    run: submitNpis,
  }),
  get_results: tool({
    title: 'Get results',
    input: Joi.object<{ readonly batch_ids: string[] }>({
      batch_ids: list(batchId, MAX_BATCHES, TEXTS.arguments.batch_ids),
    }),
    output: Joi.object(results),
    isReadOnly: true,
    run: (call, { batch_ids }) => getResults(call, batch_ids),
  }),
  list_batches: tool({
    title: 'List batches',
    input: Joi.object<Readonly<Record<string, string>>>({
      status: status.optional(),
      npi: npi.description(TEXTS.arguments.npi),
    }),
    output: Joi.object({
      batches: Joi.array()
        .items(
          Joi.object({
            id: text,
            status,
            total: count,
            completed_count: count,
            created_at: text.allow(null),
            updated_at: text.allow(null),
          }),
        )
        .required(),
    }),
    isReadOnly: true,
    run: listBatches,
  }),
  get_credits: tool({
    title: 'Get credits',
    input: Joi.object({}),
    output: Joi.object({ balance: count, total: count, used: count }),
    isReadOnly: true,
    run: getCredits,
  }),
};

/** Returns a schema for a list, with its largest length in the description. */
function list(item: Joi.Schema, most: number, description: string) {
  return boundedList(item, most, fillText(description, { most }));
}

/** Returns a text about lists with more batches than a call returns. */
function forMany(text: string): string {
  return fillText(text, { most: MAX_BATCHES });
}

function counts(names: readonly string[]) {
  return Object.fromEntries(names.map((name) => [name, count]));
}

function optional(fields: Readonly<Record<string, Joi.Schema>>) {
  const entries = Object.entries(fields).map(([name, field]) => [name, field.optional()]);
  return Object.fromEntries(entries);
}

async function listBatches(call: ToolCall, filter: Readonly<Record<string, string>>) {
  const query = new URLSearchParams({ ...filter, limit: String(LISTED_BATCHES) });
  const { batches } = await call.get<{ batches: object[] }>(`/api/v1/batches?${query}`);
  return { batches };
}

async function getCredits(call: ToolCall) {
  const { balance, total, used } =
    await call.get<Readonly<Record<'balance' | 'total' | 'used', number>>>(
      '/api/v1/credits',
    );
  return { balance, total, used };
}
