import { CURSOR, PAGE } from '../http/parameters.ts';
import { IDEMPOTENCY_KEY } from '../routes/submit-body.ts';

/** `components.parameters`: request headers, and the query of lists. */
export const parameters = {
  'Idempotency-Key': {
    name: 'Idempotency-Key',
    in: 'header',
    description:
      'Unique for what you submit, such as a UUID: a retry with the same key and the same meaning of the body gets the stored 202 for 24 hours, and does nothing.',
    schema: { type: 'string', pattern: IDEMPOTENCY_KEY.source },
    example: '7f6c0c6e-2d0f-4f3e-8e39-4d7d7b4b2f11',
  },
  'If-None-Match': {
    name: 'If-None-Match',
    in: 'header',
    description: 'The `ETag` you have: 304 where it is still the same.',
    schema: { type: 'string' },
    example: '"Zk3v1Qx9"',
  },
  Prefer: {
    name: 'Prefer',
    in: 'header',
    description:
      '`wait=N` (RFC 7240) holds the answer for up to N seconds, at most 55: of a poll until the state changes, of a submit until the batch is completed. Anything else is ignored.',
    schema: { type: 'string' },
    example: 'wait=1',
  },
  limit: {
    name: 'limit',
    in: 'query',
    description: 'How many items the page may hold.',
    schema: { type: 'integer', minimum: PAGE.least, maximum: PAGE.most, default: PAGE.usual },
    example: 20,
  },
  cursor: {
    name: 'cursor',
    in: 'query',
    description: '`next_cursor` of the page before; without it the first page.',
    schema: { type: 'string', pattern: CURSOR },
    example: '01jd9x6k2wf3r8t0z5q7w4m1hd',
  },
} as const;

export const parameter = (name: keyof typeof parameters) => ({ $ref: `#/components/parameters/${name}` });
