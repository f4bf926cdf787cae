import type { EmailType } from '../../../db/words.ts';
import type { Pointer } from '../../http/json-pointer.ts';
import type { Need, Verdict } from '../vendor.ts';
import { sourcesSchema } from './schema.ts';
import type { JsonObjectTemplate } from './template.ts';

/** A vendor as a file describes it, checked and with its secrets in place; README.md tells what each part is for. */
export interface HttpJsonSource {
  readonly id: string;
  readonly method: 'GET' | 'POST';
  /** With placeholders in its path or query only. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Null for GET. */
  readonly body: JsonObjectTemplate | null;
  readonly needs: readonly Need[];
  readonly gives: readonly EmailType[];
  readonly cost: number;
  readonly repeat_is_free: boolean;
  /** Whether its licence lets us keep an address beyond the lookup that it answers. */
  readonly may_store: boolean;
  readonly timeout_ms: number;
  /** How long a lookup waits for it before it goes on to the next vendor. */
  readonly wait_ms: number;
  /** Over all workers; null for none. */
  readonly limits: Readonly<Record<'per_second' | 'per_minute' | 'daily_credits', number | null>>;
  readonly miss: {
    readonly statuses: readonly number[];
    readonly when: readonly {
      readonly pointer: Pointer;
      readonly equals: string | number | boolean | null;
    }[];
  };
  readonly candidates: {
    /** A list of candidates, or the only one. */
    readonly list: Pointer;
    /** These from one candidate on. */
    readonly email: Pointer;
    readonly type: { readonly pointer: Pointer; readonly values: Words<EmailType> } | null;
    readonly status: { readonly pointer: Pointer; readonly values: Words<Verdict> } | null;
    readonly validated_at: Pointer | null;
  };
  readonly identity: Readonly<Record<'npi' | 'first' | 'last' | 'full' | 'state', Pointer | null>>;
}

/** By the vendor's word in lower case. */
export type Words<Meaning> = Readonly<Record<string, Meaning>>;

/** Everything that is wrong with a file of vendors, each with its place; no secret and no value of it. */
export class SourcesError extends Error {
  override readonly name = 'SourcesError';
}

/**
 * Reads a file of vendors: a JSON list, as in deploy/config/vendors.example.json.
 * @param secretOf what `${VENDOR_NAME}` in a header stands for; undefined where it is not set
 * @throws {SourcesError} naming every problem at once
 */
export function parseSources(
  text: string,
  secretOf: (name: string) => string | undefined,
): readonly HttpJsonSource[] {
  const { value, error } = sourcesSchema(secretOf).validate(parseJson(text), {
    abortEarly: false,
    convert: false,
    errors: { wrap: { label: false } },
    messages: {
      'object.unknown': '{{#label}} is no setting of a vendor',
      'any.required': '{{#label}} is missing',
    },
  });
  if (!error) return value;
  throw sourcesError(error.details.map(({ message }) => message));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    // The rest of the message quotes the file.
    const place = /\(line \d+ column \d+\)/.exec(String(error))?.[0] ?? '';
    throw sourcesError([`not JSON ${place}`.trim()]);
  }
}

function sourcesError(problems: readonly string[]): SourcesError {
  const lines = problems.map((problem) => `  ${problem}`);
  return new SourcesError(`the file of vendors has ${problems.length} problem(s):\n${lines.join('\n')}`);
}
