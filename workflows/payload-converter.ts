import { defaultPayloadConverter, type Payload, type PayloadConverter } from '@temporalio/common';

/** What cannot be decoded is undefined: a signal that somebody sent wrongly must not stop the workflow it is sent to. */
export const payloadConverter: PayloadConverter = {
  toPayload: (value) => defaultPayloadConverter.toPayload(value),
  fromPayload<T>(payload: Payload): T {
    try {
      return defaultPayloadConverter.fromPayload(payload);
    } catch {
      return undefined as T;
    }
  },
};
