import Joi from 'joi';
import { isConfidential } from '../../activities/http/client.ts';
import { OperatorProblem } from '../../db/errors.ts';
import type { Rate } from '../../db/lookups/sources.ts';
import type { SecretKey } from '../../db/secrets.ts';

// Rules for the values of environment variables and of the sources file.

/**
 * A problem of the configuration. Its message names the settings that are wrong, never their
 * values.
 */
export class ConfigError extends OperatorProblem {
  override readonly name = 'ConfigError';
}

/** Returns an error that lists the problems of one part of the configuration, one per line. */
export function problemsIn(what: string, problems: readonly string[]): ConfigError {
  return new ConfigError(`${what} has ${problems.length} problem(s):\n  ${problems.join('\n  ')}`);
}

/**
 * Checks an object by rules and returns the resulting values. If a custom rule throws, its message
 * follows the name of the value.
 * @throws {ConfigError} naming every problem at once
 */
export function check<T>(
  rules: Joi.ObjectSchema<T>,
  given: unknown,
  what: string,
  options: Joi.ValidationOptions,
): T {
  const { value, error } = rules.validate(given, {
    abortEarly: false,
    errors: { wrap: { label: false } },
    messages: {
      'any.required': '{{#label}} is missing',
      'any.custom': '{{#label}} {{#error.message}}',
    },
    ...options,
  });
  if (!error) return value;
  const messages = error.details.map(({ message }) => message);
  // Joi quotes the value in messages about patterns.
  throw problemsIn(
    what,
    messages.map((message) => message.replace(/ with value .*? fails /, ' fails ')),
  );
}

/** The values that result from rules. */
export type Values<Rules> = {
  readonly [Name in keyof Rules]: Rules[Name] extends Joi.Schema<infer T> ? T : never;
};

/** A text that `parse` converts. `parse` returns null for an invalid text. */
export const parsed = <T>(parse: (text: string) => T | null, what: string) =>
  Joi.string<T>().custom((text: string) => {
    const value = parse(text);
    if (value === null) throw new Error(`must be ${what}`);
    return value;
  });

/** A whole number within bounds. */
export const whole = (min: number, max: number) => Joi.number().integer().min(min).max(max);

export const oneOf = <Word extends string>(...words: readonly Word[]) =>
  Joi.string<Word>().valid(...words);

/** An optional value that defaults to null. */
export const orNull = <T>(rule: Joi.AnySchema<T>) => rule.default(null) as Joi.AnySchema<T | null>;

const UNITS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

/** A duration such as `30s`, converted to milliseconds, within bounds. */
export const duration = (minMs: number, maxMs: number) =>
  Joi.string<number>().custom((text: string) => {
    const ms = parseDuration(text);
    if (ms === null) throw new Error('must be a duration such as 500ms, 30s, 15m, 24h or 30d');
    if (ms < minMs || ms > maxMs) throw new Error(`must be between ${minMs} ms and ${maxMs} ms`);
    return ms;
  });

/** A rate such as `500/1m`: at most 500 calls in any minute. */
export const rate = () =>
  parsed<Rate>((text) => {
    const match = /^([1-9][0-9]{0,5})\/([0-9]+[a-z]+)$/.exec(text);
    if (match === null) return null;
    const [, calls, time = ''] = match;
    const perMs = parseDuration(time);
    if (perMs === null || perMs === 0) return null;
    return { calls: Number(calls), perMs };
  }, 'a rate such as 10/1s or 500/1m');

/** An object with these members and no others. */
export const members = <T>(keys: Joi.PartialSchemaMap) =>
  Joi.object<T>(keys).messages({
    'object.unknown': `{{#label}} is unknown; known here: ${Object.keys(keys).join(', ')}`,
  });

/** Values separated by commas, empty if not set. `item` returns null for an invalid value. */
export const list = <T>(item: (text: string) => T | null, what: string) =>
  parsed<readonly T[]>((text) => {
    const parts = text.split(',').map((part) => part.trim());
    const values = parts.filter((part) => part !== '').map(item);
    if (values.length === 0 || !values.every((value) => value !== null)) return null;
    return values;
  }, `${what}, separated by commas`).default([]);

/** Pairs such as `name=value`, percent-encoded as in OpenTelemetry's variables. */
export const pairs = () =>
  list((text) => {
    const match = /^([\w.-]+) *= *(.*)$/.exec(text);
    if (match === null) return null;
    const [, name = '', value = ''] = match;
    return [name, decodeURIComponent(value)] as const;
  }, 'pairs such as name=value');

/** An http(s) URL. A slash at its end is removed. */
export const anyUrl = () =>
  Joi.string()
    .uri({ scheme: ['https', 'http'] })
    .custom((text: string) => text.replace(/\/+$/, ''));

/** Like `anyUrl`, for traffic that must not be readable on the way. */
export const confidentialUrl = () =>
  anyUrl().custom((text: string) => {
    requireConfidential(URL.parse(text));
    return text;
  });

/** Checks that traffic to a URL is not readable on the way. @throws {Error} if it is */
export function requireConfidential(url: URL | null): void {
  if (url && isConfidential(url)) return;
  throw new Error('must be an https URL; http is for this machine only');
}

/** `http://[user:password@]host[:port]` and nothing else, as a URL. */
export const httpProxy = () =>
  parsed((text) => {
    const proxy = URL.parse(text);
    if (proxy?.protocol !== 'http:') return null;
    const { pathname, search, hash } = proxy;
    return pathname + search + hash === '/' ? proxy : null;
  }, 'an HTTP proxy such as http://proxy.example:3128');

/** Parses a duration: `15m` → 900000. Returns null if the text is not a duration. */
export function parseDuration(text: string): number | null {
  const match = /^([0-9]{1,9})(ms|s|m|h|d)$/.exec(text);
  if (match === null) return null;
  const [, digits, unit = ''] = match;
  return Number(digits) * (UNITS[unit] ?? Number.NaN);
}

/** Parses `v1:` and 32 bytes in base64. Returns null if the text is not a key. */
export function parseSecretKey(text: string): SecretKey | null {
  const match = /^([a-z0-9]{1,20}):([A-Za-z0-9+/]{43}=)$/.exec(text);
  if (match === null) return null;
  const [, version = '', key = ''] = match;
  return { version, key: Buffer.from(key, 'base64') };
}
