import { DefaultFailureConverter, defaultPayloadConverter, type Payload } from '@temporalio/common';

// What histories hold of values and of failures. The SDK requires these two export names.

/** What cannot be decoded is undefined: a signal that somebody sent wrongly must not stop the workflow it is sent to. */
export const payloadConverter = {
  toPayload: (value: unknown) => defaultPayloadConverter.toPayload(value),
  fromPayload(payload: Payload): unknown {
    try {
      return defaultPayloadConverter.fromPayload(payload);
    } catch {
      return undefined;
    }
  },
};

/** Failures without stack traces: histories are shown to people, and a trace names folders of the worker's machine. */
class FailureConverter extends DefaultFailureConverter {
  override errorToFailure(...args: Parameters<DefaultFailureConverter['errorToFailure']>) {
    return { ...super.errorToFailure(...args), stackTrace: '' };
  }
}

export const failureConverter = new FailureConverter();
